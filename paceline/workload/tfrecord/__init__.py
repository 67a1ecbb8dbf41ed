"""TFRecord files: framing with checksums, the fields of an Example, and an index of shards."""

"""What training has reached by the end of a run: accuracy, and the updates behind it."""

from __future__ import annotations

from paceline.measure.record.record import Record


def accuracy_of(record: Record) -> list[float]:
    """The share of test samples that were right, after each evaluation; none where the source has no test part."""
    return [float(entry["value"]) for entry in record.accuracy if "value" in entry]


def updates_of(record: Record) -> int:
    """Updates up to the end of what was measured, warm-up and all; 0 where the record does not tell."""
    series, blocks = record.series, len((record.rate.get("total") or {}).get("repeats") or [0.0])
    measured = len(series.get("seconds") or ())
    return len(series.get("warmup") or ()) + measured + int(series.get("dropped_blocks") or 0) * (measured // blocks)

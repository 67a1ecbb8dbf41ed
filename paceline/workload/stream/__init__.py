"""Streams: batches that another process prepares, handed over through shared memory or a ZeroMQ pipe."""

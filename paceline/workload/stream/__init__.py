"""Streams of batches that another process prepares and passes through shared memory or a ZeroMQ pipe."""

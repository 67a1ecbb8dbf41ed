"""Measure how fast a source is: alone, and by the share of a training step that waits for it.

alone       samples / second over pieces of equal time, and bytes of their tensors
training    data / step of the breakdown, one worker
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from paceline.engine.device import find
from paceline.measure.measure import measure
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval, mean_interval
from paceline.run.run import Run
from paceline.train.build import feed_of, workload_of
from paceline.types import View
from paceline.workload import sources
from paceline.workload.sources._source import Streaming

PIECES = 10


@dataclass(frozen=True)
class SourceRate:
    """The rate of a source alone. The interval is over pieces of equal time."""

    samples: Interval  # per second
    nbytes: float  # of one sample

    @property
    def bandwidth(self) -> float:
        """Return bytes per second."""
        return self.samples.centre * self.nbytes

    def to_dict(self) -> dict[str, Any]:
        return {"samples_per_second": asdict(self.samples), "bytes_per_second": self.bandwidth}


@dataclass(frozen=True)
class Stall:
    """The wait for data in training: its share of a step, the seconds of a step, samples per second, and notes."""

    share: float
    step: float
    rate: Interval
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"share": self.share, "step_seconds": self.step, "samples_per_second": asdict(self.rate)}


def rate_alone(run: Run, seconds: float, clock: Callable[[], float] = time.perf_counter) -> SourceRate:
    """Take batches of a source for some seconds, through the feed of a worker; the first batch does not count."""
    source = sources.MENU.make(run.source)
    workload = workload_of(run, source.inner if isinstance(source, Streaming) else source)
    feed = feed_of(run, workload, View(0, 1), find(), source)
    try:
        batch = next(feed)
        nbytes = sum(tensor.nbytes for tensor in _tensors(batch)) / run.samples_per_step
        del batch  # a batch that is kept holds its slot
        pieces = [_piece(feed, seconds / PIECES, clock) for _ in range(PIECES)]
    finally:
        feed.close()
    return SourceRate(mean_interval(pieces), nbytes)


def _piece(feed: Any, seconds: float, clock: Callable[[], float]) -> float:
    """Return samples per second; a piece has at least one batch, and ends with a batch."""
    began, samples = clock(), 0
    while True:
        next(feed)
        samples += feed.count
        spent = clock() - began
        if spent >= seconds:
            return samples / spent


def _tensors(batch: Any) -> Iterator[Any]:
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else ()
    if hasattr(batch, "nbytes"):
        yield batch
    for part in parts:
        yield from _tensors(part)


def stall_in_training(run: Run) -> Stall:
    """Train one worker for a few steps with the source, and return how long a step waits for data."""
    record, _ = measure(run, lambda *_: None)
    return stall_of(record)


def stall_of(record: Record) -> Stall:
    parts, total = record.breakdown, record.rate["total"]
    rate = Interval(total["mean"], total["low"], total["high"], total["confidence"])
    share = parts["data"] / parts["step"] if parts["step"] else 0.0
    return Stall(share, parts["step"], rate, tuple(note for note in record.notes if "data" in note or "store" in note))

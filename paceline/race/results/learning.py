"""Results of training at the end of a run: accuracy, the time until it was reached, and the number of updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval, mean_interval


def accuracy_of(record: Record) -> list[float]:
    """Return the share of test samples that were right, after each evaluation; empty if the source has no test part."""
    return [entry["value"] for entry in record.accuracy]


def updates_of(record: Record) -> int:
    """Return the updates up to the end of the measurement, warm-up included; 0 if the record does not say."""
    series, total = record.series, record.rate.get("total")
    blocks = len(total.get("repeats", [])) if total else 0
    measured = len(series.get("seconds", []))
    return len(series.get("warmup", [])) + measured + series.get("dropped_blocks", 0) * (measured // max(1, blocks))


def timed_accuracy(record: Record) -> list[tuple[float, float]]:
    """Return (seconds of training, accuracy) of each evaluation; empty if the record does not tell the seconds."""
    return [(entry["seconds"], entry["value"]) for entry in record.accuracy if "seconds" in entry]


def final_accuracy(records: Sequence[Record]) -> Interval | None:
    """Return the last accuracy over starts, which have different seeds."""
    last = [values[-1] for record in records if (values := accuracy_of(record))]
    return mean_interval(last) if last else None


def target_of(records: Iterable[Record]) -> float | None:
    """Return the accuracy to compare times at: the target of the runs, or else what every start has reached."""
    records = list(records)
    best = [max(values) for record in records if (values := accuracy_of(record))]
    targets = {record.run.target for record in records if record.run.target is not None}
    return max(targets) if targets else min(best, default=None)


def seconds_to(record: Record, target: float) -> float | None:
    """Return the seconds of training until an evaluation reached the target; None if none did."""
    return next((seconds for seconds, value in timed_accuracy(record) if value >= target), None)


def time_to_target(records: Sequence[Record], target: float) -> tuple[Interval | None, int]:
    """Return the time to a target over the starts that reached it, and their number."""
    times = [seconds for record in records if (seconds := seconds_to(record, target)) is not None]
    return (mean_interval(times) if times else None), len(times)

"""Results of training at the end of a run: accuracy, and the number of updates."""

from __future__ import annotations

from paceline.measure.record.record import Record


def accuracy_of(record: Record) -> list[float]:
    """Return the share of test samples that were right, after each evaluation; empty if the source has no test part."""
    return [entry["value"] for entry in record.accuracy]


def updates_of(record: Record) -> int:
    """Return the updates up to the end of the measurement, warm-up included; 0 if the record does not say."""
    series, total = record.series, record.rate.get("total")
    blocks = len(total.get("repeats", [])) if total else 0
    measured = len(series.get("seconds", []))
    return len(series.get("warmup", [])) + measured + series.get("dropped_blocks", 0) * (measured // max(1, blocks))

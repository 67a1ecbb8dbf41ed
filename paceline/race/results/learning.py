"""What training has reached by the end of a run: accuracy, and the updates behind it."""

from __future__ import annotations

from paceline.measure.record.record import Record


def accuracy_of(record: Record) -> list[float]:
    """The share of test samples that were right, after each evaluation; none where the source has no test part."""
    return [entry["value"] for entry in record.accuracy]


def updates_of(record: Record) -> int:
    """Updates up to the end of what was measured, warm-up and all; 0 where the record does not tell."""
    series, total = record.series, record.rate.get("total")
    blocks = len(total.get("repeats", [])) if total else 0
    measured = len(series.get("seconds", []))
    return len(series.get("warmup", [])) + measured + series.get("dropped_blocks", 0) * (measured // max(1, blocks))

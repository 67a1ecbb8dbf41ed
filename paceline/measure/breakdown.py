"""The time of a step, split into parts that add up to the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from paceline.measure.meter import PARTS


def breakdown(steps: Sequence[float], parts: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the mean seconds of each part, of the remainder, and of the step."""
    means = {part: fmean(parts[part]) for part in PARTS}
    step = fmean(steps)
    return {**means, "other": max(0.0, step - sum(means.values())), "step": step}


def over_ranks(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every part over ranks."""
    return {part: fmean(row[part] for row in rows) for part in rows[0]}

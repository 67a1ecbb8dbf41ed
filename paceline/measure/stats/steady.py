"""Decide whether a series of steps is steady, and where its warm-up ends.

 seconds
  |*
  | *
  |  * .  .                         .
  |   *  * *.**..*.*.**.*..*.**.*.*..**   steady: one level, one mode
  |---------+------------------------------> step
   warm-up  start

The part after warm-up starts at the first of three steps in a row that look like the later half of the series. It is
steady unless it drifts or has two modes. It drifts if a line fitted to it rises or falls by more than DRIFT and by more
than chance explains. It has two modes if it splits into two levels with at least SHARE of the steps each, and the gap
between them is larger than the gap between the upper and lower half of one noisy level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 8  # values; fewer cannot be judged
DRIFT = 0.02  # share of the centre, over the whole series; smaller drifts are ignored
APART = 0.03  # share of the centre; modes closer than this are ignored
IN_A_ROW = 3
CHANCE = 3.0  # standard errors of the slope; about one in three hundred steady series exceeds it
SHARE = 0.15  # share of the steps that a mode must have

Array = np.ndarray


@dataclass(frozen=True)
class Settled:
    """The verdict: `start` is the first step after warm-up; `why` is the reason if the series is not steady."""

    start: int
    steady: bool
    why: str = ""


def settle(series: Sequence[float], *, period: int = 1) -> Settled:
    """Judge a series of seconds. A strategy that repeats itself every `period` steps is judged by their means."""
    values = folded(series, period)
    if len(values) < LEAST:
        return Settled(0, False, f"{len(series)} steps are too few to tell")
    start = warm_up(values)
    if start is None:
        return Settled(len(series) // 3, False, "warm-up did not end in the first third")
    rest = values[start:]
    return Settled(start * period, *_judged(rest))


def folded(series: Sequence[float], period: int) -> Array:
    """Return means of `period` steps each; an incomplete last period is dropped."""
    count = len(series) // period
    return np.asarray(series[: count * period], dtype=float).reshape(count, period).mean(axis=1)


def warm_up(values: Array) -> int | None:
    """Return the number of values before the series reaches the level of its later half, or None if it never does."""
    later = values[len(values) // 2 :]
    centre, spread = float(np.median(later)), _spread(later)
    calm = np.abs(values - centre) <= CHANCE * max(spread, 0.005 * centre)
    for start in range(len(values) // 3 + 1):
        row = calm[start : start + IN_A_ROW]
        # One odd step is noise: a level is reached if the first and at least one more of three steps lie on it.
        if row[0] and row.sum() >= IN_A_ROW - 1:
            return start
    return None


def _judged(rest: Array) -> tuple[bool, str]:
    change = drift(rest)
    if change is not None:
        return False, f"it drifts by {100 * change:+.1f} % over {len(rest)} steps"
    modes = two_modes(rest)
    if modes is not None:
        return False, f"it has two modes, {1e3 * modes[0]:.3g} and {1e3 * modes[1]:.3g} ms"
    return True, ""


def drift(values: Array) -> float | None:
    """Return the change along a straight line relative to the centre, or None if it is small or may be chance."""
    tame = _tamed(values)
    count = len(tame)
    time = np.arange(count) - (count - 1) / 2
    square = float(time @ time)
    slope = float(time @ tame) / square
    residual = tame - tame.mean() - slope * time
    noise = math.sqrt(float(residual @ residual) / max(1, count - 2))
    error = noise / math.sqrt(square) * _inflation(residual)
    # Few values estimate their noise badly, so the threshold follows Student's t.
    chance = CHANCE * (1 + 2.5 / max(1, count - 2))
    centre = float(np.median(values))
    change = slope * (count - 1) / centre
    return change if abs(change) > DRIFT and abs(slope) > chance * error else None


def two_modes(values: Array) -> tuple[float, float] | None:
    """Return the two levels of a series that jumps between them, or None."""
    ranked = np.sort(values)
    count = len(ranked)
    least = max(2, math.ceil(SHARE * count))
    best: tuple[float, int] | None = None
    sums, squares = np.cumsum(ranked), np.cumsum(ranked * ranked)
    for cut in range(least, count - least + 1):
        low = squares[cut - 1] - sums[cut - 1] ** 2 / cut
        high = squares[-1] - squares[cut - 1] - (sums[-1] - sums[cut - 1]) ** 2 / (count - cut)
        if best is None or low + high < best[0]:
            best = (low + high, cut)
    if best is None:
        return None
    within = math.sqrt(max(best[0], 0.0) / max(1, count - 2))
    low, high = float(ranked[: best[1]].mean()), float(ranked[best[1] :].mean())
    gap = float(ranked[best[1]] - ranked[best[1] - 1])
    # The halves of one normal level are 2.6 of their deviations apart, of a uniform one 3.5; short series vary more.
    apart = high - low > (4.0 + 16 / count) * within and gap > 1.2 * within
    return (low, high) if apart and high - low > APART * float(np.median(ranked)) else None


def _spread(values: Array) -> float:
    """Return a standard deviation from the median absolute deviation, which ignores outliers."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _tamed(values: Array) -> Array:
    """Return the values with outliers limited to five deviations."""
    centre, spread = float(np.median(values)), _spread(values)
    return np.clip(values, centre - 5 * spread, centre + 5 * spread) if spread else values


def _inflation(residual: Array) -> float:
    """Return the factor by which autocorrelation widens a standard error."""
    total = float(residual @ residual)
    alike = float(residual[1:] @ residual[:-1]) / total if total else 0.0
    alike = min(max(alike, 0.0), 0.9)
    return math.sqrt((1 + alike) / (1 - alike))

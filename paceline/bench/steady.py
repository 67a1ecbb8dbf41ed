"""Whether a series of steps has settled, and from which step on.

 seconds
  |*
  | *
  |  * .  .                         .
  |   *  * *.**..*.*.**.*..*.**.*.*..**   steady: one level, one mode
  |---------+------------------------------> step
   warm-up  start

Warm-up ends with the first of three steps in a row that look like the later half of the series. What follows must
neither drift (a line through it climbs or falls by more than DRIFT, and by more than chance) nor have two modes (two
levels, each with its share of the steps, further apart than noise puts the halves of one level).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 8  # values; fewer cannot show whether they are steady
DRIFT = 0.02  # of the centre, over the whole series; less does not matter
APART = 0.03  # of the centre; modes closer than this do not matter
IN_A_ROW = 3
CHANCE = 3.0  # standard errors of the slope: about one steady series of three hundred
SHARE = 0.15  # of the steps that a mode must have

Array = np.ndarray


@dataclass(frozen=True)
class Settled:
    """`start` is the first step after warm-up; `why` says what is wrong with a series that is not steady."""

    start: int
    steady: bool
    why: str = ""


def settle(series: Sequence[float], *, period: int = 1) -> Settled:
    """Judge a series of seconds. `period`: steps after which a strategy repeats itself, judged as one."""
    values = folded(series, period)
    if len(values) < LEAST:
        return Settled(0, False, f"{len(series)} steps are too few to tell")
    start = warm_up(values)
    if start is None:
        return Settled(len(series) // 3, False, "warm-up did not end in the first third")
    rest = values[start:]
    return Settled(start * period, *_judged(rest))


def folded(series: Sequence[float], period: int) -> Array:
    """Means of `period` steps each; a ragged end is left out."""
    count = len(series) // period
    return np.asarray(series[: count * period], dtype=float).reshape(count, period).mean(axis=1)


def warm_up(values: Array) -> int | None:
    """How many values come before the series has reached the level of its later half; None if it never does."""
    later = values[len(values) // 2 :]
    centre, spread = float(np.median(later)), _spread(later)
    calm = np.abs(values - centre) <= CHANCE * max(spread, 0.005 * centre)
    for start in range(len(values) // 3 + 1):
        row = calm[start : start + IN_A_ROW]
        # One odd step is noise; a level is reached where at least two of three steps lie on it, the first among them.
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
    """The change along a straight line, relative to the centre, if it matters and is more than chance."""
    tame = _tamed(values)
    count = len(tame)
    time = np.arange(count) - (count - 1) / 2
    square = float(time @ time)
    slope = float(time @ tame) / square
    residual = tame - tame.mean() - slope * time
    noise = math.sqrt(float(residual @ residual) / max(1, count - 2))
    error = noise / math.sqrt(square) * _inflation(residual)
    # Few values estimate their own noise badly, as Student's t knows.
    chance = CHANCE * (1 + 2.5 / max(1, count - 2))
    centre = float(np.median(values))
    change = slope * (count - 1) / centre
    return change if abs(change) > DRIFT and abs(slope) > chance * error else None


def two_modes(values: Array) -> tuple[float, float] | None:
    """The two levels of a series that jumps between them."""
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
    # The halves of one normal level lie 2.6 of their own deviations apart, of a flat one 3.5; short series scatter.
    apart = high - low > (4.0 + 16 / count) * within and gap > 1.2 * within
    return (low, high) if apart and high - low > APART * float(np.median(ranked)) else None


def _spread(values: Array) -> float:
    """The standard deviation as the median absolute deviation sees it: outliers do not count."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def _tamed(values: Array) -> Array:
    """Outliers pulled in to five deviations."""
    centre, spread = float(np.median(values)), _spread(values)
    return np.clip(values, centre - 5 * spread, centre + 5 * spread) if spread else values


def _inflation(residual: Array) -> float:
    """How much wider an error is when neighbors in time are alike."""
    total = float(residual @ residual)
    alike = float(residual[1:] @ residual[:-1]) / total if total else 0.0
    alike = min(max(alike, 0.0), 0.9)
    return math.sqrt((1 + alike) / (1 - alike))

"""The ratio of two contenders in one start, from the turns that both took.

turn          1        2        3      ...
a          0.110    0.112    0.171          seconds of a step, the mean of a block
b          0.121    0.124    0.186
log ratio  0.095    0.102    0.083          a slow second affects both blocks of a turn
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

TRIMMED = 0.2  # share of the turns left out at each end, such as turns in which the machine was busy


def cut_of(count: int) -> int:
    """Return how many turns are left out at each end: at least one of three or more."""
    return max(math.floor(TRIMMED * count), int(count >= 3))


def trimmed_mean(values: Any) -> Any:
    """Return the mean over the last axis without the smallest and the largest values."""
    ranked = np.sort(np.asarray(values, dtype=float), axis=-1)
    count = ranked.shape[-1]
    cut = cut_of(count)
    return ranked[..., cut : count - cut].mean(axis=-1)


def log_ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the logarithm of how many times faster `mine` is; both are seconds per step, turn by turn."""
    return float(trimmed_mean([math.log(b / a) for a, b in zip(mine, theirs, strict=True)]))


def inner_error(mine: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the standard error of the log ratio of one start, from its turns; None with fewer than four turns.

    The variance of a trimmed mean is that of the winsorized values, divided by the square of the kept share (Tukey,
    McLaughlin).
    """
    logs = np.sort([math.log(b / a) for a, b in zip(mine, theirs, strict=True)])
    count = len(logs)
    cut = cut_of(count)
    if count < 4:
        return None
    tame = np.clip(logs, logs[cut], logs[count - cut - 1])
    return float(tame.std(ddof=1) / ((1 - 2 * cut / count) * math.sqrt(count)))


def best_turns(inner: float, turns: int, between: float, start_seconds: float, turn_seconds: float) -> float:
    """Return how many turns of a start give the narrowest interval for a given time.

    A start costs start_seconds + n * turn_seconds, and its ratio has the variance between^2 + turns * inner^2 / n,
    where `inner` is the error that `turns` turns left: cost times variance is least at the root below.
    """
    if between <= 0 or turn_seconds <= 0:
        return math.inf
    return math.sqrt(turns * inner**2 * start_seconds / (between**2 * turn_seconds))

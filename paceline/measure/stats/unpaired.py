"""The ratio of two unpaired sets of rates, for `compare`.

The interval of a race, which holds after every start, is in sequential.py; race/results/standing.py chooses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from paceline.measure.stats.intervals import Interval, t95


def unpaired_ratio(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Return the ratio of geometric means, with Welch's t interval on the logarithms."""
    logs = [[math.log(value) for value in side] for side in (over, under)]
    centre = fmean(logs[0]) - fmean(logs[1])
    if min(map(len, logs)) < 2:
        return Interval(math.exp(centre), None, None)
    half = _half(logs)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half))


def _half(logs: Sequence[Sequence[float]]) -> float:
    parts = [stdev(side) ** 2 / len(side) for side in logs]
    total = sum(parts)
    if total == 0:
        return 0.0
    degrees = total**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    return t95(max(1, math.floor(degrees))) * math.sqrt(total)

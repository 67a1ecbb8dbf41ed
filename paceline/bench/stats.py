"""Means, intervals and percentiles of a few numbers, without surprises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond that a close formula.
_T95: tuple[float, ...] = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T95 += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)


@dataclass(frozen=True)
class Interval:
    """A centre with its confidence interval; low and high are None where one number cannot tell."""

    centre: float
    low: float | None
    high: float | None
    confidence: float = 0.95


def t95(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    if degrees < 1:
        raise ValueError("an interval needs at least two numbers")
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z, g = 1.959964, degrees
    return z + (z**3 + z) / (4 * g) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * g**2)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean with its t interval."""
    if len(values) < 2:
        return Interval(values[0], None, None)
    half = t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    centre = fmean(values)
    return Interval(centre, centre - half, centre + half)


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """The mean of paired ratios, with a t interval on their logarithms: both sides met the same noise."""
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    inner = mean_interval(logs)
    low, high = (None if side is None else math.exp(side) for side in (inner.low, inner.high))
    return Interval(math.exp(inner.centre), low, high)


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def summary(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": median(values),
        "p95": percentile(values, 0.95),
        "p99": percentile(values, 0.99),
        "max": max(values),
        "samples": len(values),
    }

"""Means, confidence intervals and percentiles of a few numbers.

Over repeats (fresh processes) an interval is Student's t; a percentile bootstrap would cover the true value in 73, 83
and 90 of 100 cases at 3, 5 and 10 repeats. Over the steps of one process, which are autocorrelated, it is the block
bootstrap, whose variance has a closed form: no random numbers are drawn, and the answer is always the same. The rate in
a record has the interval over steps.

The interval of the ratio that a race prints is in sequential.py, and that of `paceline compare` in unpaired.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median, pstdev, stdev

ENOUGH = 5  # repeats; fewer give figures but no verdict
FEWEST = 3  # starts; fewer have no interval

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; a formula approximates the rest.
_T95: tuple[float, ...] = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_T95 += (2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086)


@dataclass(frozen=True)
class Interval:
    """A centre with its confidence interval; low and high are None if there is only one number."""

    centre: float
    low: float | None
    high: float | None
    confidence: float = 0.95

    def holds(self, value: float) -> bool:
        """Return whether the interval contains a value; an unknown interval contains every value."""
        return self.low is None or self.high is None or self.low <= value <= self.high


def t95(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution."""
    if degrees < 1:
        raise ValueError("an interval needs at least two numbers")
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z, g = 1.959964, degrees
    return z + (z**3 + z) / (4 * g) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * g**2)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean with its t interval."""
    if len(values) < 2:
        return Interval(values[0], None, None)
    half = t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    centre = fmean(values)
    return Interval(centre, centre - half, centre + half)


def block_interval(values: Sequence[float]) -> Interval:
    """Return the mean of a series from one process, with the interval of a block bootstrap.

    A block bootstrap draws blocks of b neighbors with replacement, which keeps their autocorrelation. The variance
    of its mean is b/n times the variance of all block means, so no random numbers are needed.
    """
    count, centre = len(values), fmean(values)
    if count < 2:
        return Interval(centre, None, None)
    length = block_length(values)
    sums = [0.0, *accumulate(values)]
    means = [(stop - start) / length for start, stop in zip(sums, sums[length:], strict=False)]
    # Overlapping block means underestimate the variance by the share of a block in the series.
    variance = length / (count - length) * fmean((mean - centre) ** 2 for mean in means)
    half = t95(max(1, math.floor(1.5 * (count / length - 1)))) * math.sqrt(variance)
    return Interval(centre, centre - half, centre + half)


def block_length(series: Sequence[float]) -> int:
    """Return the number of neighbors in a block: 1 without autocorrelation, at most a fourth of the series."""
    alike = min(max(autocorrelation(series), 0.0), 0.95)
    best = (2 * alike**2 / (1 - alike**2) ** 2) ** (1 / 3) * len(series) ** (1 / 3)
    return min(max(1, math.ceil(2 * best)), max(1, len(series) // 4))


def autocorrelation(series: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation, corrected for the bias of short series."""
    centre = fmean(series)
    rest = [value - centre for value in series]
    total = sum(value * value for value in rest)
    if not total or len(rest) < 3:
        return 0.0
    plain = sum(a * b for a, b in pairwise(rest)) / total
    return plain + (1 + 3 * plain) / len(rest)


def leaning(values: Sequence[float]) -> bool:
    """Return whether consecutive values are so similar that an interval for independent values is too narrow.

    It uses von Neumann's ratio: for independent values, the mean squared difference of neighbors is twice the variance.
    The threshold is the level that 5 of 100 series without autocorrelation reach.
    """
    count = len(values)
    centre = fmean(values) if values else 0.0
    square = sum((value - centre) ** 2 for value in values)
    if count < 5 or not square:
        return False
    ratio = sum((b - a) ** 2 for a, b in pairwise(values)) / square
    return (1 - ratio / 2) / math.sqrt((count - 2) / (count * count - 1)) > 1.645


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Return the mean of paired ratios, with a t interval on their logarithms. Pairs share the machine's noise."""
    return log_interval([math.log(a / b) for a, b in zip(over, under, strict=True)])


def log_interval(logs: Sequence[float]) -> Interval:
    """Return the geometric mean of ratios given as logarithms, with its t interval.

    Fewer than three logarithms give no interval.
    """
    centre = math.exp(fmean(logs))
    if len(logs) < FEWEST:
        return Interval(centre, None, None)
    inner = mean_interval(logs)
    return Interval(centre, math.exp(inner.low or 0.0), math.exp(inner.high or 0.0))


def rate_interval(rates: Sequence[float]) -> Interval:
    """Return the mean rate over starts. Its interval is computed on logarithms, so that it never reaches zero."""
    centre, inner = fmean(rates), log_interval([math.log(rate) for rate in rates])
    if inner.low is None or inner.high is None:
        return Interval(centre, None, None)
    return Interval(centre, centre * inner.low / inner.centre, centre * inner.high / inner.centre)


def quotient(over: Interval, under: Interval) -> Interval:
    """Return the ratio of two independent figures; the squares of their relative errors add up."""
    centre = over.centre / under.centre
    if None in (over.low, over.high, under.low, under.high):
        return Interval(centre, None, None)
    halves = [((side.high or 0.0) - (side.low or 0.0)) / (2 * side.centre) for side in (over, under)]
    factor = math.exp(math.hypot(*halves))
    return Interval(centre, centre / factor, centre * factor)


def standard_error(values: Sequence[float]) -> float:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def jitter(values: Sequence[float]) -> float:
    """Return a standard deviation that is robust to outliers: 1.4826 times the median absolute deviation."""
    centre = median(values)
    return 1.4826 * median(abs(value - centre) for value in values)


@dataclass(frozen=True)
class StepLine:
    """The three figures in a step line of tf_cnn_benchmarks, as that program computes them."""

    mean: float
    uncertainty: float
    jitter: float


def step_line(samples: float, seconds: Sequence[float]) -> StepLine:
    """Return the mean rate of steps of `samples` each, its uncertainty by the population deviation, and the jitter."""
    rates = [samples / second for second in seconds]
    return StepLine(samples / fmean(seconds), pstdev(rates) / math.sqrt(len(rates)), jitter(rates))


def summary(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": median(values),
        "p95": percentile(values, 0.95),
        "p99": percentile(values, 0.99),
        "max": max(values),
        "jitter": jitter(values),
        "samples": len(values),
    }

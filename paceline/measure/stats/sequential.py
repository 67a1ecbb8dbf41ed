"""Decide during a race who is faster, with intervals of the ratio that may be checked after every start.

    start        1      2      3      4      5      6   ...
    log ratio    d1     d2     d3     d4     d5     d6
    interval     -      -   (-----------)
                               (-------)               stop as soon as one of the answers holds:
                                 (----)                    above 1, below 1, or inside the margin around 1

An ordinary t interval is valid for one check. Checking it after each start and stopping at the first difference gives a
wrong answer far more often than in 5 % of races. The intervals here are repeated confidence
intervals: with the stated probability all of them, one after each start, contain the true ratio, whatever makes the
race stop. spending.py has their critical values, which are exact for normal log ratios up to HORIZON starts. Starts
after HORIZON use the error probability that is not spent yet, with mixture bounds, which are valid for any number of
starts. With t the statistic of n log ratios and g = EFFECT:

    B(n) = (1 + n g)^(-1/2) * [ (1 + t^2/(n-1)) / (1 + t^2/((n-1)(1 + n g))) ]^(n/2)   <   1 / alpha

H. Wang, A. Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance",
Sequential Analysis 44 (2025). Several pairs of one heat share alpha equally (Bonferroni): the stated confidence is that
of all pairs together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from paceline.measure.stats.intervals import Interval
from paceline.measure.stats.spending import looks, share_spent

EFFECT = 0.1  # prior variance of the effect size in the mixture, for starts beyond the horizon
HORIZON = 120  # starts with exact critical values; a race until it is sure has at most 60
LEAST_STARTS = 3  # fewer have no interval
MOST_STARTS = 10_000  # most starts that an estimate looks ahead
CONFIDENCE = 0.95

Answer = Literal["faster", "slower", "level", "open"]
Array = np.ndarray


def reach(count: int, alpha: float) -> float:
    """Return the half-width of the bounds, in standard deviations of one start; infinite with too few starts."""
    if count < LEAST_STARTS:
        return math.inf
    if count <= HORIZON:
        return looks(alpha, LEAST_STARTS).critical(count) / math.sqrt(count)
    return _mixture_reach(count, alpha * (1 - share_spent(HORIZON, LEAST_STARTS)))


def _mixture_reach(count: int, alpha: float) -> float:
    wide = 1 + count * EFFECT
    log_bound = (math.log(wide) / 2 - math.log(alpha)) * 2 / count
    if log_bound >= math.log(wide):
        return math.inf
    bound = math.exp(log_bound)
    return math.sqrt((count - 1) * (bound - 1) / (1 - bound / wide) / count)


def bounds(logs: Any, alpha: float = 1 - CONFIDENCE) -> tuple[Array, Array]:
    """Return the low and high bounds of the mean of the last axis: log ratios of one pair, one for each start."""
    values = np.asarray(logs, dtype=float)
    count = values.shape[-1]
    centre = values.mean(axis=-1)
    half = reach(count, alpha)
    if math.isinf(half):
        return np.full_like(centre, -math.inf), np.full_like(centre, math.inf)
    wide = half * values.std(axis=-1, ddof=1)
    return centre - wide, centre + wide


def answers(low: Any, high: Any, margin: float) -> tuple[Array, Array, Array]:
    """Return three masks: bounds that mean faster, slower, and level.

    Level is a difference below the margin (0.03 is 3 %).
    """
    low, high, edge = np.asarray(low), np.asarray(high), math.log1p(margin)
    faster, slower = low > 0, high < 0
    return faster, slower, ~faster & ~slower & (low > -edge) & (high < edge)


def anytime_ratio(logs: Sequence[float], pairs: int = 1) -> Interval:
    """Return the mean ratio with bounds that hold after every start; `pairs` comparisons share the error."""
    centre = math.exp(sum(logs) / len(logs))
    low, high = bounds(logs, (1 - CONFIDENCE) / max(1, pairs))
    if not np.isfinite(low):
        return Interval(centre, None, None, CONFIDENCE)
    return Interval(centre, float(np.exp(low)), float(np.exp(high)), CONFIDENCE)


def anytime_quotient(over: Sequence[float], under: Sequence[float], pairs: int = 1) -> Interval:
    """Return the ratio of two contenders that never ran in the same start, from the logarithms of their rates.

    Each rate gets its own bounds, with half of the error probability. The ratio then lies between low / high and
    high / low of the two.
    """
    centre = math.exp(sum(over) / len(over) - sum(under) / len(under))
    alpha = (1 - CONFIDENCE) / max(1, pairs) / 2
    (low, high), (under_low, under_high) = bounds(over, alpha), bounds(under, alpha)
    if not (np.isfinite(low) and np.isfinite(under_low)):
        return Interval(centre, None, None, CONFIDENCE)
    return Interval(centre, float(np.exp(low - under_high)), float(np.exp(high - under_low)), CONFIDENCE)


def answer(ratio: Interval | None, margin: float) -> Answer:
    """Return the conclusion about a pair that an interval allows."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return "open"
    faster, slower, level = answers(math.log(ratio.low), math.log(ratio.high), margin)
    return "faster" if faster else "slower" if slower else "level" if level else "open"


def starts_needed(logs: Sequence[float], pairs: int, margin: float) -> int | None:
    """Estimate the number of starts after which a pair is decided, including the starts made so far.

    It is assumed that the ratio and its spread stay as they are. The pair is decided when its ratio surely differs from
    1, or surely by less than the margin. Return None if that takes more than MOST_STARTS.
    """
    if len(logs) < LEAST_STARTS:
        return None
    centre, deviation = float(np.mean(logs)), float(np.std(logs, ddof=1))
    goal, alpha = max(abs(centre), math.log1p(margin) - abs(centre)), (1 - CONFIDENCE) / max(1, pairs)
    count = len(logs)
    while count < MOST_STARTS and reach(count, alpha) * deviation >= goal:
        count += max(1, count // 50)
    return count if count < MOST_STARTS else None

"""Round values for an axis, and their text."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, floor, isfinite, log10

_ROUND = (1, 2, 2.5, 5, 10)
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def step_of(low: float, high: float, count: int, *, whole: bool = False) -> float:
    """Return the smallest round step that needs at most `count` intervals between low and high."""
    span = high - low
    if not isfinite(span) or span <= 0:
        return 1.0
    power = 10.0 ** floor(log10(span / max(1, count)))
    step = next(power * part for part in (*_ROUND, 20) if power * part * max(1, count) >= span * (1 - 1e-9))
    return float(max(1, ceil(step))) if whole else step


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Return multiples of a round step from low to high, at most `count` + 1 of them."""
    step = step_of(low, high, count, whole=whole)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [k * step for k in range(first, min(last, first + count + 1) + 1)] or [low]


def powers(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten from below low to above high. If there are many, return every second, third, ... of them."""
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    every = max(1, ceil((last - first) / max(1, count)))
    return [10.0**k for k in range(first, last + every, every)]


def written(values: list[float]) -> list[str]:
    """Format the rising values of an axis with as many digits as needed, and with a comma between thousands."""
    gap = min((b - a for a, b in pairwise(values)), default=abs(values[0]) if values else 0.0)
    for digits in range(10):
        texts = [f"{value:,.{digits}f}" for value in values]
        errors = (abs(float(text.replace(",", "")) - value) for text, value in zip(texts, values, strict=True))
        if max(errors, default=0.0) <= 1e-3 * gap:
            return texts
    return [f"{value:.3g}" for value in values]


def prefixed(value: float) -> str:
    """Format a value of a wide range with a prefix: 1k, 64M, 0.01."""
    size, letter = next(((size, letter) for size, letter in _PREFIXES if value >= size), (1.0, ""))
    return f"{value / size:g}{letter}"

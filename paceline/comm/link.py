"""Measure the cost of a chunk on this link: time small and large chunks, and fit latency + n / bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from paceline.types import Link

SIZES = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22)  # bytes
ROUNDS = 5


def sizes_within(nbytes: int) -> tuple[int, ...]:
    """Return the sizes to measure if no chunk can be larger than `nbytes`."""
    chosen = tuple(size for size in SIZES if size <= nbytes)
    return chosen if len(chosen) > 1 else tuple(sorted({max(1, nbytes // 16), max(1, nbytes)}))


def measure(exchange: Callable[[int], float], sizes: Sequence[int], rounds: int = ROUNDS) -> Link:
    """Time each size and fit a link to the medians. `exchange(nbytes)` moves nbytes bytes and returns the seconds."""
    seen: dict[int, list[float]] = {size: [] for size in sizes}
    for size in sizes:
        exchange(size)  # the first one touches new memory
    for _ in range(rounds):
        for size in sizes:
            seen[size].append(exchange(size))
    return fit(sizes, [median(seen[size]) for size in sizes])


def fit(sizes: Sequence[float], seconds: Sequence[float]) -> Link:
    """Fit latency and bandwidth by relative errors, so that small messages weigh as much as large ones."""
    n, t = np.asarray(sizes, dtype=np.float64), np.maximum(np.asarray(seconds, dtype=np.float64), 1e-9)
    rows = np.stack([1 / t, n / t], axis=1)
    a, b = np.linalg.lstsq(rows, np.ones_like(t), rcond=None)[0] if len(n) > 1 else (0.0, float(t[0] / n[0]))
    if a < 0:  # noise; use the shortest time as latency
        a = float(t.min())
    slope = float(max(b, (t.max() - a) / n.max() * 1e-3, 1e-15))
    return Link(float(a), 1 / slope)

"""Turn a ratio into a number of elements, and find the elements whose magnitude reaches a threshold."""

from __future__ import annotations

import math

import numpy as np

from paceline.strategy.compressors._bits import BLOCK, Array, blocks


def count_of(ratio: float, numel: int) -> int:
    """Return k = max(1, floor(ratio d)); a small addend keeps 0.29 x 100 at 29 in spite of rounding."""
    return min(numel, max(1, math.floor(ratio * numel + 1e-9)))


def at_least(x: Array, threshold: float) -> tuple[Array, Array]:
    """Return the rising indices of elements whose magnitude reaches the threshold, and their magnitudes."""
    sizes, mask = np.empty(min(x.size, BLOCK), dtype=x.dtype), np.empty(min(x.size, BLOCK), dtype=bool)
    places, magnitudes = [], []
    for part in blocks(x.size):
        size, reached = sizes[: part.stop - part.start], mask[: part.stop - part.start]
        np.abs(x[part], out=size)
        np.greater_equal(size, threshold, out=reached)
        positions = np.flatnonzero(reached)
        magnitudes.append(size[positions])
        places.append(positions + part.start)
    return np.concatenate(places), np.concatenate(magnitudes)

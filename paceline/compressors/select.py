"""The k largest by magnitude, exactly, and of equal ones those that stand first.

Large vectors: a threshold from a sample leaves a little more than k elements, and the exact choice is made
among those. A bad sample costs time, never exactness.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.compressors.bits import BLOCK, Array, blocks

SMALL = 1 << 15  # up to here sampling costs more than it saves
_SMALLEST = np.finfo(np.float32).smallest_subnormal
STRIDE = 251  # of the sample; a prime, because layers have lengths with many small factors


def count_of(ratio: float, numel: int) -> int:
    """k = max(1, floor(ratio d)); the grain of sand keeps 0.29 x 100 at 29."""
    return min(numel, max(1, math.floor(ratio * numel + 1e-9)))


def largest(x: Array, k: int) -> Array:
    """Rising indices of the k elements of largest magnitude."""
    if x.size <= SMALL or 4 * k > x.size:
        return exact(np.abs(x), k)
    sample = np.sort(np.abs(x[::STRIDE]))
    expected = k / STRIDE
    for doubt in (3.0, 12.0):
        rank = math.ceil(expected + doubt * math.sqrt(expected) + doubt)
        if rank >= sample.size:
            break
        found, sizes = at_least(x, sample[-rank] or _SMALLEST)
        if found.size >= k:
            return found[exact(sizes, k)]
        if not sample[-rank]:
            return _with_zeros(x, found, k)
    return exact(np.abs(x), k)


def _with_zeros(x: Array, found: Array, k: int) -> Array:
    """All that is not zero, and the first zeros: gradients of embeddings are mostly zero."""
    zeros = np.flatnonzero(x[: k + found.size] == 0)[: k - found.size]
    return np.sort(np.concatenate([found, zeros]))


def at_least(x: Array, threshold: float) -> tuple[Array, Array]:
    """Rising indices of the elements whose magnitude reaches the threshold, and those magnitudes."""
    sizes, mask = np.empty(min(x.size, BLOCK), dtype=x.dtype), np.empty(min(x.size, BLOCK), dtype=bool)
    places, magnitudes = [], []
    for part in blocks(x.size):
        size, reached = sizes[: part.stop - part.start], mask[: part.stop - part.start]
        np.abs(x[part], out=size)
        np.greater_equal(size, threshold, out=reached)
        found = np.flatnonzero(reached)
        magnitudes.append(size[found])
        places.append(found + part.start)
    return np.concatenate(places), np.concatenate(magnitudes)


def exact(sizes: Array, k: int) -> Array:
    if k >= sizes.size:
        return np.arange(sizes.size)
    least = np.partition(sizes, sizes.size - k)[sizes.size - k]
    chosen = sizes > least
    ties = np.flatnonzero(sizes == least)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)

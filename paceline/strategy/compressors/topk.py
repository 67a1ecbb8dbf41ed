"""Send the k = max(1, floor(ratio d)) elements of largest magnitude of each chunk; on a tie the first ones.

A. F. Aji, K. Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; with feedback,
S. U. Stich et al., "Sparsified SGD with Memory", NeurIPS 2018.

In a large vector, a threshold from a sample first selects slightly more than k elements; the k largest are then chosen
exactly among them. A bad sample costs time, but the result is always exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.comm.transport import Comm
from paceline.protocols import Wire
from paceline.strategy.compressors._bits import Array
from paceline.strategy.compressors._codec import Lossy, check_ratio
from paceline.strategy.compressors._gathered import Gathered, Parts
from paceline.strategy.compressors._select import at_least, count_of
from paceline.strategy.compressors._sparse import EACH, pack, unpack
from paceline.types import Chunk, Layout

SMALL = 1 << 15  # up to here sampling costs more than it saves
STRIDE = 251  # stride of the sample; a prime, because lengths of layers have many small factors
_SMALLEST = np.finfo(np.float32).smallest_subnormal


@dataclass(frozen=True)
class TopK(Lossy):
    ratio: float = 0.01

    name: ClassVar[str] = "topk"

    def __post_init__(self) -> None:
        check_ratio(self)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", EACH * count_of(self.ratio, piece.numel)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Largest:
        return Largest(self.ratio, comm.size)


class Largest(Gathered):
    """The operator that sends the largest elements of a chunk, with their positions."""

    dense = False

    def __init__(self, ratio: float, size: int) -> None:
        super().__init__(size)
        self._ratio = ratio

    def encode(self, piece: Chunk, x: Array) -> Array:
        where = largest(x, count_of(self._ratio, x.size))
        return pack(where, x[where], x.size)

    def decode(self, piece: Chunk, code: Array) -> Parts:
        yield unpack(code)


def largest(x: Array, k: int) -> Array:
    """Return the rising indices of the k elements of largest magnitude."""
    if x.size <= SMALL or 4 * k > x.size:
        return exact(np.abs(x), k)
    sample = np.sort(np.abs(x[::STRIDE]))
    expected = k / STRIDE
    for doubt in (3.0, 12.0):
        rank = math.ceil(expected + doubt * math.sqrt(expected) + doubt)
        if rank >= sample.size:
            break
        positions, sizes = at_least(x, sample[-rank] or _SMALLEST)
        if positions.size >= k:
            return positions[exact(sizes, k)]
        if not sample[-rank]:
            return _with_zeros(x, positions, k)
    return exact(np.abs(x), k)


def _with_zeros(x: Array, positions: Array, k: int) -> Array:
    """Return the indices of all nonzero elements, and of as many zeros as k needs.

    Gradients of embeddings are mostly zero.
    """
    zeros = np.flatnonzero(x[: k + positions.size] == 0)[: k - positions.size]
    return np.sort(np.concatenate([positions, zeros]))


def exact(sizes: Array, k: int) -> Array:
    """Return the rising indices of the k largest magnitudes, by a search over all of them."""
    if k >= sizes.size:
        return np.arange(sizes.size)
    least = np.partition(sizes, sizes.size - k)[sizes.size - k]
    chosen = sizes > least
    ties = np.flatnonzero(sizes == least)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    return np.flatnonzero(chosen)

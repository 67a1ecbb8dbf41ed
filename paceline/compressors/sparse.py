"""Indices and values on the wire: 4 bytes and 4 bytes each, of at most 2^31 elements in a chunk.

| i0 i1 ... | v0 v1 ... |
"""

from __future__ import annotations

import numpy as np

from paceline.compressors.bits import Array
from paceline.compressors.gathered import Gathered, Parts, joined, typed
from paceline.compressors.select import count_of, largest
from paceline.errors import WorkloadError
from paceline.types import Chunk

EACH = 8  # bytes of one index and one value
MOST = 1 << 31  # elements that an index of 4 bytes tells apart


def pack(where: Array, values: Array, numel: int) -> Array:
    """Some of the `numel` elements of a chunk."""
    if numel > MOST:
        raise WorkloadError(
            f"a chunk of {numel:,} elements",
            why=f"elements travel with an index of 4 bytes, which tells {MOST:,} apart",
            remedy="--schedule 'fusion(mb=25)'; where one tensor has that many, --schedule priority",
        )
    return joined(where.astype(np.int32), values)


def unpack(code: Array) -> tuple[Array, Array]:
    count = code.size // EACH
    return typed(code, 0, count, np.int32), typed(code, 4 * count, count, np.float32)


class Largest(Gathered):
    """The largest elements of a chunk, with their places."""

    dense = False

    def __init__(self, ratio: float, size: int) -> None:
        super().__init__(size)
        self._ratio = ratio

    def encode(self, piece: Chunk, x: Array) -> Array:
        where = largest(x, count_of(self._ratio, x.size))
        return pack(where, x[where], x.size)

    def decode(self, piece: Chunk, code: Array) -> Parts:
        yield unpack(code)

"""The payload format of efsign and onebit: one or two numbers per tensor, and one bit per element.

| numbers of all tensors | bits of tensor 0, in whole words | bits of tensor 1 | ...
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from paceline.strategy.compressors._bits import Array, pack_signs, spelled, words
from paceline.strategy.compressors._codec import tensors_in
from paceline.strategy.compressors._gathered import Gathered, Parts, typed
from paceline.types import Chunk, Layout

Levels = Callable[[Array], tuple[float, ...]]


def two_level_bytes(layout: Layout, piece: Chunk, numbers: int) -> int:
    return sum(4 * numbers + words(stop - start) for _, start, stop in tensors_in(layout, piece))


class TwoLevels(Gathered):
    """The operator of both. `levels` returns a scale, or a number for negative elements and one for all others."""

    def __init__(self, layout: Layout, size: int, levels: Levels, numbers: int) -> None:
        super().__init__(size)
        self._layout, self._levels, self._numbers = layout, levels, numbers

    def encode(self, piece: Chunk, x: Array) -> Array:
        tensors = tensors_in(self._layout, piece)
        code = np.empty(two_level_bytes(self._layout, piece, self._numbers), dtype=np.uint8)
        at = 4 * self._numbers * len(tensors)
        levels = np.array([self._levels(x[start:stop]) for _, start, stop in tensors], dtype=np.float32)
        code[:at] = levels.reshape(-1).view(np.uint8)
        for _, start, stop in tensors:
            length = words(stop - start)
            pack_signs(x[start:stop], code[at : at + length])
            at += length
        return code

    def decode(self, piece: Chunk, code: Array) -> Parts:
        tensors = tensors_in(self._layout, piece)
        at = 4 * self._numbers * len(tensors)
        levels = typed(code, 0, self._numbers * len(tensors), np.float32).reshape(-1, self._numbers)
        for (_, start, stop), level in zip(tensors, levels, strict=True):
            low, high = (-level[0], level[0]) if self._numbers == 1 else level
            length = words(stop - start)
            for part, values in spelled(code[at : at + length], stop - start, low, high):
                yield slice(start + part.start, start + part.stop), values
            at += length


def total(x: Array) -> float:
    """Return the sum in float32, or in float64 if that overflows."""
    with np.errstate(over="ignore"):
        whole = float(x.sum())
    return whole if math.isfinite(whole) else float(x.sum(dtype=np.float64))

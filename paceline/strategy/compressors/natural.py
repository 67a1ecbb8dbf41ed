"""Round to powers of two: a sign and an exponent, 9 bits. Rounding up or down is random, so that the mean is right.

    x = 1.f x 2^e   ->   2^(e+1) with probability f, 2^e otherwise        omega = 1/8

Adding a random number below 2^23 to the bits of a float32 and dropping its mantissa does exactly this.

S. Horvath et al., "Natural Compression for Distributed Deep Learning", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from paceline.comm.transport import Comm
from paceline.protocols import Wire
from paceline.strategy.compressors._bits import Array, blocks, pack_signs, spelled, words
from paceline.strategy.compressors._codec import Lossy
from paceline.strategy.compressors._dice import Dice
from paceline.strategy.compressors._gathered import Gathered, Parts
from paceline.types import Chunk, Layout

OMEGA = 1 / 8
_MANTISSA, _SIGNLESS = 23, np.uint32(0x7FFFFFFF)
_LARGEST = 254  # the exponent of the largest finite numbers


@dataclass(frozen=True)
class Natural(Lossy):
    seed: int = 0

    name: ClassVar[str] = "natural"
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = False
    shrinks: ClassVar[bool] = True

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", words(piece.numel) + piece.numel),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Exponents:
        return Exponents(comm.size, Dice(self.seed, comm.rank), 1 / (1 + OMEGA) if shrunk else 1.0)


class Exponents(Gathered):
    """The operator of `natural`. A payload is | signs | exponents, a byte each |."""

    def __init__(self, size: int, dice: Dice, factor: float) -> None:
        super().__init__(size)
        self._dice, self._factor = dice, factor
        self._powers = (np.arange(256, dtype=np.uint32) << _MANTISSA).view(np.float32).copy()
        self._powers[_LARGEST + 1 :] = 0

    def encode(self, piece: Chunk, x: Array) -> Array:
        head = words(x.size)
        code = np.empty(head + x.size, dtype=np.uint8)
        pack_signs(x, code[:head])
        for part in blocks(x.size):
            raw = x[part].view(np.uint32) & _SIGNLESS
            raw += self._dice.below(1 << _MANTISSA, raw.size)
            raw >>= _MANTISSA
            code[head + part.start : head + part.stop] = np.minimum(raw, _LARGEST)
        return code

    def decode(self, piece: Chunk, code: Array) -> Parts:
        head = words(piece.numel)
        for part, signs in spelled(code[:head], piece.numel, -self._factor, self._factor):
            signs *= np.take(self._powers, code[head + part.start : head + part.stop], mode="clip")
            yield part, signs

    def state(self) -> Mapping[str, Any]:
        return self._dice.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._dice.restore(state)

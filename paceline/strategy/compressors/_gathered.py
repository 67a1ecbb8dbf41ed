"""Payloads that cannot be summed: every rank receives all of them, decodes them and adds up the results.

dst = sum_p decode(payload_p)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.protocols import Payload, Rounds
from paceline.strategy.compressors._bits import Array
from paceline.strategy.compressors._codec import Stateless
from paceline.types import Chunk

if TYPE_CHECKING:
    from torch import Tensor

# The positions of some values (a range or indices), and the values.
Parts = Iterator[tuple[Any, Array]]


class Gathered(Stateless):
    """An operator whose payloads are gathered: `encode` turns a vector into bytes, `decode` yields it back in parts."""

    dense = True  # whether decode yields every element

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, piece: Chunk, x: Array) -> Array:
        raise NotImplementedError

    def decode(self, piece: Chunk, code: Array) -> Parts:
        raise NotImplementedError

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        code = self.encode(piece, src.numpy())
        if rest is not None:
            take_off(rest.numpy(), self.decode(piece, code))
        rows = np.empty((self.size, code.size), dtype=np.uint8)
        yield gather(code, rows)
        total = dst.numpy()
        if not self.dense:
            total.fill(0)
        for number, row in enumerate(rows):
            for where, values in self.decode(piece, row):
                if self.dense and number == 0:
                    total[where] = values
                else:
                    total[where] += values


def gather(code: Array, rows: Array) -> Payload:
    import torch

    return Payload("gather", torch.from_numpy(code), torch.from_numpy(rows.reshape(-1)))


def take_off(rest: Array, parts: Parts) -> None:
    """Subtract the part that was sent from the residual."""
    for where, values in parts:
        rest[where] -= values


def typed(code: Array, start: int, count: int, dtype: Any) -> Array:
    """Return a view of numbers inside bytes; they may start at any byte."""
    return code[start : start + count * np.dtype(dtype).itemsize].copy().view(dtype)


def joined(*arrays: Array) -> Array:
    """Return arrays of any dtype as bytes, one after another."""
    return np.concatenate([np.ascontiguousarray(array).view(np.uint8) for array in arrays])

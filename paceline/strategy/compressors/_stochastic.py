"""Stochastic rounding to a few levels of a bucket's norm: unbiased, packed in bits.

|x_i| / norm x levels  =  l + f        sends l + 1 with probability f, l otherwise

| norms, float32 | codes: sign and level |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.strategy.compressors._bits import BLOCK, Array, blocks, code_bytes, pack_codes, unpack_codes
from paceline.strategy.compressors._dice import Dice
from paceline.strategy.compressors._gathered import Gathered, Parts, joined, typed
from paceline.types import Chunk


def width_of(levels: int) -> int:
    """Return the number of bits for a sign and a level from 0 to `levels`."""
    return 1 + levels.bit_length()


def stochastic_bytes(numel: int, levels: int, bucket: int) -> int:
    return 4 * -(-numel // bucket) + code_bytes(numel, width_of(levels))


class Stochastic(Gathered):
    """Rounds to random levels. `norm` is "l2" or "max". `clip` limits values; `factor` multiplies decoded ones."""

    def __init__(
        self, size: int, dice: Dice, levels: int, bucket: int, norm: str, factor: float, clip: float = 0.0
    ) -> None:
        super().__init__(size)
        self._clip = clip
        self._dice, self._levels, self._bucket, self._norm = dice, levels, bucket, norm
        self._width = width_of(levels)
        signed = np.concatenate([np.arange(1 << (self._width - 1)), -np.arange(1 << (self._width - 1))])
        self._table = (signed * (factor / levels)).astype(np.float32)

    def encode(self, piece: Chunk, x: Array) -> Array:
        codes = np.empty(x.size, dtype=np.uint8)
        sizes = np.empty(-(-x.size // self._bucket), dtype=np.float32)
        noise = np.empty(max(BLOCK, self._bucket), dtype=np.float32)
        for part in blocks(x.size, self._bucket):
            rows = self._rows(x[part])
            rows = self._clipped(rows, part.stop - part.start) if self._clip else rows
            size = self._sizes(rows)
            first = part.start // self._bucket
            sizes[first : first + size.size] = size
            levels = self._dice.fractions(noise[: rows.size]).reshape(rows.shape)
            scale = np.divide(self._levels, size, out=np.zeros_like(size), where=size > 0)
            levels += np.abs(rows) * scale[:, None]
            code = np.minimum(levels, np.float32(self._levels)).astype(np.uint8)
            code |= (rows < 0).view(np.uint8) << (self._width - 1)
            codes[part] = code.reshape(-1)[: part.stop - part.start]
        return joined(sizes, pack_codes(codes, self._width))

    def decode(self, piece: Chunk, code: Array) -> Parts:
        count = -(-piece.numel // self._bucket)
        sizes = typed(code, 0, count, np.float32)
        codes = unpack_codes(code[4 * count :], piece.numel, self._width)
        room = np.empty(max(BLOCK, self._bucket), dtype=np.float32)
        for part in blocks(piece.numel, self._bucket):
            length = part.stop - part.start
            np.take(self._table, codes[part], out=room[:length], mode="clip")
            first, buckets = part.start // self._bucket, -(-length // self._bucket)
            room[length : buckets * self._bucket] = 0
            rows = room[: buckets * self._bucket].reshape(buckets, self._bucket)
            rows *= sizes[first : first + buckets, None]
            yield part, room[:length]

    def _rows(self, x: Array) -> Array:
        """Return one row per bucket; the last one is filled with zeros."""
        fill = -x.size % self._bucket
        return (np.pad(x, (0, fill)) if fill else x).reshape(-1, self._bucket)

    def _clipped(self, rows: Array, count: int) -> Array:
        """Clip each bucket to `clip` times the root mean square of its numbers; padding zeros do not count."""
        counts = np.full(len(rows), self._bucket)
        counts[-1] -= rows.size - count
        spread = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64) / counts)
        limit = (self._clip * spread).astype(np.float32)[:, None]
        return np.clip(rows, -limit, limit)

    def _sizes(self, rows: Array) -> Array:
        if self._norm == "max":
            return np.maximum(rows.max(axis=1), -rows.min(axis=1))
        squares = np.einsum("ij,ij->i", rows, rows)
        return np.minimum(np.sqrt(squares), np.finfo(np.float32).max)

    def state(self) -> Mapping[str, Any]:
        return self._dice.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._dice.restore(state)

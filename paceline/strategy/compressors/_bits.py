"""Bits in bytes: signs, small codes and votes, packed without gaps.

Everything works in blocks whose temporaries stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = 1 << 17  # elements
_EIGHT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # the bits of each byte


def words(numel: int) -> int:
    """Return the bytes of one bit per element, in whole words of 32 bits."""
    return 4 * (-(-numel // 32))


def blocks(numel: int, grain: int = 8) -> Iterator[slice]:
    """Yield ranges that cover `numel` elements; each is a multiple of `grain`, except the last."""
    step = max(grain, BLOCK // grain * grain)
    return (slice(start, min(numel, start + step)) for start in range(0, numel, step))


def pack_signs(x: Array, out: Array) -> None:
    """Set bit i to 1 if x[i] is negative; zero counts as positive."""
    mask = np.empty(min(x.size, BLOCK), dtype=bool)
    for part in blocks(x.size):
        negative = mask[: part.stop - part.start]
        np.less(x[part], 0, out=negative)
        packed = np.packbits(negative, bitorder="little")
        out[part.start // 8 : part.start // 8 + packed.size] = packed
    out[-(-x.size // 8) :] = 0


def spelled(bits: Array, numel: int, low: float, high: float) -> Iterator[tuple[slice, Array]]:
    """Yield float32 blocks with `low` for each 1 bit and `high` for each 0 bit; all blocks use the same memory."""
    table = np.where(_EIGHT, np.float32(low), np.float32(high))
    room = np.empty((min(-(-numel // 8), BLOCK // 8), 8), dtype=np.float32)
    for part in blocks(numel):
        codes = bits[part.start // 8 : -(-part.stop // 8)]
        np.take(table, codes, axis=0, out=room[: codes.size], mode="clip")
        yield part, room.reshape(-1)[: part.stop - part.start]


def spell(bits: Array, out: Array, low: float, high: float) -> None:
    """Write the values that `spelled` yields to one vector; whole bytes are written directly."""
    table, whole = np.where(_EIGHT, np.float32(low), np.float32(high)), out.size // 8
    rows = out[: 8 * whole].reshape(-1, 8)
    for part in blocks(whole):
        np.take(table, bits[part], axis=0, out=rows[part], mode="clip")
    if whole * 8 < out.size:
        out[8 * whole :] = table[bits[whole]][: out.size - 8 * whole]


def vote(rows: Sequence[Array]) -> Array:
    """Set bit i to 1 if more than half of the rows have a 1. Counts are kept as bit planes.

    planes[b] holds bit b of every element's count, so that adding a row costs a few word operations.
    """
    needed = len(rows) // 2 + 1
    planes = [np.zeros(rows[0].size // 4, dtype=np.uint32) for _ in range(len(rows).bit_length())]
    for row in rows:
        carry = row.view(np.uint32)
        for plane in planes:
            plane ^= carry
            carry = carry & ~plane
    return _at_least(planes, needed).view(np.uint8)


def _at_least(planes: Sequence[Array], needed: int) -> Array:
    """Return a mask of the elements whose count reaches `needed`, compared from the highest bit down."""
    above, equal = np.zeros_like(planes[0]), ~np.zeros_like(planes[0])
    for bit in reversed(range(len(planes))):
        if needed >> bit & 1:
            equal &= planes[bit]
        else:
            above |= equal & planes[bit]
            equal &= ~planes[bit]
    return above | equal


def code_bytes(numel: int, width: int) -> int:
    """Return the bytes of `numel` codes of `width` bits."""
    return sum(-(-numel * part // 8) for part in _parts(width))


def pack_codes(codes: Array, width: int) -> Array:
    """Pack codes of `width` bits without gaps; 3 bits are packed as 2 bits and 1 bit.

    Element i shares its byte with elements i + n/4, i + 2n/4, ... (for 2 bits), so that no access is strided.
    """
    packed, shift = [], 0
    for part in _parts(width):
        rows = _rows((codes >> shift) & ((1 << part) - 1) if width != part else codes, 8 // part)
        for k in range(1, len(rows)):
            rows[0] |= rows[k] << (part * k)
        packed.append(rows[0])
        shift += part
    return packed[0] if len(packed) == 1 else np.concatenate(packed)


def unpack_codes(packed: Array, numel: int, width: int) -> Array:
    codes: Array = np.zeros(0, dtype=np.uint8)
    shift = start = 0
    for part in _parts(width):
        length = -(-numel * part // 8)
        raw, mask = packed[start : start + length], (1 << part) - 1
        rows = np.empty((8 // part, length), dtype=np.uint8)
        for k in range(len(rows)):
            np.bitwise_and(raw >> (part * k), mask, out=rows[k])
        bits = rows.reshape(-1)[:numel]
        codes = codes | (bits << shift) if shift else bits
        shift, start = shift + part, start + length
    return codes


def _parts(width: int) -> tuple[int, ...]:
    return tuple(part for part in (8, 4, 2, 1) if width & part)


def _rows(codes: Array, count: int) -> Array:
    """Return the codes as `count` rows of equal length, padded with zeros; a copy."""
    length = -(-codes.size // count)
    rows = np.zeros(count * length, dtype=np.uint8)
    rows[: codes.size] = codes
    return rows.reshape(count, length)

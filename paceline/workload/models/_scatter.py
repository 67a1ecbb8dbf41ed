"""Map sample ids to pseudo-random numbers with an integer hash, without using random state.

scatter(ids, salt) -> one number in [0, 2**63) per id, the same on every rank and machine
"""

from __future__ import annotations

from torch import Tensor

# The multipliers of splitmix64, as signed 64-bit numbers; int64 products wrap around, as they should.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64
_POSITIVE = 2**63 - 1


def scatter(ids: Tensor, salt: int = 0) -> Tensor:
    """Hash ids to well spread, non-negative numbers."""
    mixed = (ids.long() + salt + 1) * _GOLDEN
    mixed = (mixed ^ _shift(mixed, 30)) * _FIRST
    mixed = (mixed ^ _shift(mixed, 27)) * _SECOND
    return (mixed ^ _shift(mixed, 31)) & _POSITIVE


def _shift(value: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch's own shift would copy the sign."""
    return (value >> bits) & (2 ** (64 - bits) - 1)

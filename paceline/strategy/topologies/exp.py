"""Every rank sends to the ranks 1, b, b^2, ... places after it: few neighbors, and few hops to any rank.

    base 3, 10 ranks: rank 0 sends to 1, 3 and 9

Powers are computed as whole numbers, because logarithms would round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember
from paceline.strategy.topologies._circulant import Circulant


@dataclass(frozen=True)
class Exp(Circulant):
    base: int = 2

    name: ClassVar[str] = "exp"

    def __post_init__(self) -> None:
        if self.base < 2:
            raise BadMember(f"exp(base={self.base})", why="powers of it do not grow", remedy="exp(base=2)")

    def offsets(self, size: int) -> tuple[int, ...]:
        return powers_below(size, self.base)


def powers_below(limit: int, base: int) -> tuple[int, ...]:
    powers, power = [], 1
    while power < limit:
        powers.append(power)
        power *= base
    return tuple(powers)

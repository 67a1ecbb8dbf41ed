"""Every rank mixes with the rank before and the rank after it.

    0 - 1 - 2 - 3 -+
    +--------------+        W[r, r] = W[r, r-1] = W[r, r+1] = 1/3; with two ranks, each keeps 1/2

Mixing rate 1/3 + 2/3 cos(2 pi / n).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.topologies._circulant import Circulant


@dataclass(frozen=True)
class Ring(Circulant):
    name: ClassVar[str] = "ring"
    directed: ClassVar[bool] = False

    def offsets(self, size: int) -> tuple[int, ...]:
        return tuple(sorted({1 % size, (size - 1) % size} - {0}))

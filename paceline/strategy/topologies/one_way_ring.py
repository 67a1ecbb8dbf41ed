"""Every rank receives from the rank before it and sends to the rank after it.

0 -> 1 -> 2 -> 3 -> 0        W[r, r] = W[r, r-1] = 1/2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.topologies._circulant import Circulant


@dataclass(frozen=True)
class OneWayRing(Circulant):
    name: ClassVar[str] = "one_way_ring"

    def offsets(self, size: int) -> tuple[int, ...]:
        return (1,) if size > 1 else ()

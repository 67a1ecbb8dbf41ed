r"""All ranks mix with rank 0.

      1   2
       \ /
    5 - 0 - 3        W[0, j] = W[j, 0] = 1/n: the center keeps 1/n, the others 1 - 1/n
        |
        4

Mixing rate 1 - 1/n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.topologies._undirected import Undirected


@dataclass(frozen=True)
class Star(Undirected):
    uniform: bool = False

    name: ClassVar[str] = "star"

    def neighbors(self, rank: int, size: int) -> tuple[int, ...]:
        return (0,) if rank else tuple(range(1, size))

"""A grid of rows x columns, as square as possible, in row-major order, without wrap-around.

0 - 1 - 2
|   |   |        6 ranks are 2 x 3; a prime number of ranks is a line
3 - 4 - 5
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import ClassVar

from paceline.strategy.topologies._undirected import Undirected


@dataclass(frozen=True)
class Grid(Undirected):
    uniform: bool = False

    name: ClassVar[str] = "grid"

    def neighbors(self, rank: int, size: int) -> tuple[int, ...]:
        columns = shape(size)[1]
        above, below = (rank - columns, rank + columns)
        left = rank - 1 if rank % columns else -1
        right = rank + 1 if (rank + 1) % columns else -1
        return tuple(peer for peer in (above, left, right, below) if 0 <= peer < size)

    def note(self, size: int, nodes: int = 1) -> str | None:
        line = f"{self} on {size} ranks is a line: {size} is prime" if size > 3 and shape(size)[0] == 1 else None
        lines = [text for text in (super().note(size, nodes), line) if text]
        return "; ".join(lines) or None


def shape(size: int) -> tuple[int, int]:
    """Return rows and columns, with no more rows than columns."""
    rows = next(k for k in range(isqrt(size), 0, -1) if size % k == 0)
    return rows, size // rows

"""Every rank mixes with all others: one step is the mean, W[i, j] = 1 / n."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.topologies._circulant import Circulant


@dataclass(frozen=True)
class Full(Circulant):
    name: ClassVar[str] = "full"
    directed: ClassVar[bool] = False

    def offsets(self, size: int) -> tuple[int, ...]:
        return tuple(range(1, size))

"""Graphs whose ranks have different numbers of neighbors, with weights that still keep the mean.

    Metropolis-Hastings   W[i, j] = 1 / (1 + max(d_i, d_j)),  W[i, i] = 1 - the sum of the other weights
    uniform               W[i, j] = 1 / (1 + d_i)

The first is symmetric, so that columns sum to one. The second converges to a mean in which rank i has the weight d_i +
1.

L. Xiao, S. Boyd, S. Lall, "A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus", IPSN 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from paceline.strategy.topologies.traits import TopologyTraits
from paceline.types import Mixing, View

Neighbors = Callable[[int], tuple[int, ...]]


def mix(rank: int, neighbors: Neighbors, uniform: bool) -> Mixing:
    """Return the row of a rank of an undirected graph."""
    mine = tuple(sorted(neighbors(rank)))
    degree = len(mine)
    others = [degree if uniform else max(degree, len(neighbors(neighbor))) for neighbor in mine]
    sources = tuple((neighbor, 1 / (1 + larger)) for neighbor, larger in zip(mine, others, strict=True))
    return Mixing(1 - sum(weight for _, weight in sources), sources, mine)


class Undirected(TopologyTraits):
    """An undirected graph; `uniform` is a setting of every member."""

    uniform: bool
    directed: ClassVar[bool] = False

    def neighbors(self, rank: int, size: int) -> tuple[int, ...]:
        raise NotImplementedError

    def row(self, rank: int, view: View, step: int) -> Mixing:
        return mix(rank, lambda peer: self.neighbors(peer, view.size), self.uniform)

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        """Return whether weights are symmetric.

        Uniform weights are symmetric only if all ranks have equally many neighbors.
        """
        return not self.uniform or len({len(self.neighbors(rank, size)) for rank in range(size)}) == 1

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool:
        return self.symmetric(size)

    def note(self, size: int, nodes: int = 1) -> str | None:
        return None if self.doubly_stochastic(size) else wrong_mean(self)


def wrong_mean(topology: object) -> str:
    return f"{topology}: uniform weights converge to a mean in which well-connected ranks count more"

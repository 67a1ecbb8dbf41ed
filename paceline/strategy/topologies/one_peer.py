"""One neighbor per step, taken in turn. Every step sends one model and receives one, on any graph.

    x[r] <- 1/2 x[r] + 1/2 x[r - d[t mod k]]        d: the k offsets of the graph; at each step a permutation

    exp2, 4 ranks     even steps   0 -> 1 -> 2 -> 3 -> 0
                      odd steps    0 <-> 2   1 <-> 3         after both, every rank holds the mean

With exp2 on 2^k ranks, any k consecutive steps give the exact mean. With other numbers of ranks the mean is a limit.

B. Ying, K. Yuan, Y. Chen, H. Hu, P. Pan, W. Yin, "Exponential Graph is Provably Efficient for Decentralized Deep
Training", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.menu.menu import nested
from paceline.strategy.topologies._circulant import ALONE, Circulant, one_peer_at, pairs_up, refuse_irregular
from paceline.strategy.topologies.exp2 import Exp2
from paceline.strategy.topologies.traits import TopologyTraits
from paceline.types import Mixing, View


@dataclass(frozen=True)
class OnePeer(TopologyTraits):
    of: Circulant = nested("paceline.strategy.topologies:MENU", default=Exp2())

    name: ClassVar[str] = "one_peer"
    directed: ClassVar[bool] = True
    changes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse_irregular(str(self), self.of)

    def __str__(self) -> str:
        return f"{self.name}({self.of})"

    def row(self, rank: int, view: View, step: int) -> Mixing:
        offsets = self.of.offsets(view.size)
        return one_peer_at(rank, view.size, offsets[step % len(offsets)]) if offsets else ALONE

    def period(self, size: int, nodes: int = 1) -> int:
        return max(1, len(self.of.offsets(size)))

    def symmetric(self, size: int, nodes: int = 1) -> bool:
        return pairs_up(self.of.offsets(size), size)

    def doubly_stochastic(self, size: int, nodes: int = 1) -> bool:
        return True

    def note(self, size: int, nodes: int = 1) -> str | None:
        if self.exact(size):
            return None
        return f"{self} on {size} ranks reaches the mean only in the limit; one_peer(exp2) on 2^k ranks in k steps"

    def exact(self, size: int) -> bool:
        """Return whether one period gives the exact mean.

        The product over a period scales the Fourier mode m by the product of (1 + e^(-2 pi i m d / n)) / 2, so every
        mode but m = 0 needs an offset d that turns it by half a circle: m d / n = 1/2 modulo 1.
        """
        offsets = self.of.offsets(size)
        return all(any(2 * mode * d % (2 * size) == size for d in offsets) for mode in range(1, size))

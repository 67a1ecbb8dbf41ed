"""Every rank sends to the ranks 1, 2, 4, ... places after it, with uniform weights.

    8 ranks: rank 0 sends to 1, 2, 4 and receives from 7, 6, 4

Mixing rate 1 - 2 / (2 + floor(log2(n - 1))) for even n.

B. Ying, K. Yuan, Y. Chen, H. Hu, P. Pan, W. Yin, "Exponential Graph is Provably Efficient for Decentralized Deep
Training", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.topologies._circulant import Circulant
from paceline.strategy.topologies.exp import powers_below


@dataclass(frozen=True)
class Exp2(Circulant):
    name: ClassVar[str] = "exp2"

    def offsets(self, size: int) -> tuple[int, ...]:
        return powers_below(size, 2)

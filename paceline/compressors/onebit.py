"""One bit per element; each tensor carries the mean of its negative elements and the mean of the rest.

F. Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
Speech DNNs", Interspeech 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.compressors.codec import Lossy
from paceline.compressors.two_levels import TwoLevels, mean_of_each_sign, two_level_bytes
from paceline.protocols import Wire
from paceline.transport import Comm
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class OneBit(Lossy):
    name: ClassVar[str] = "onebit"

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", two_level_bytes(layout, piece, numbers=2)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> TwoLevels:
        return TwoLevels(layout, comm.size, mean_of_each_sign, numbers=2)

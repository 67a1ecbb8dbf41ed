"""Signs with one scale per tensor, so that the size of a gradient survives: made for feedback.

    C(u) = |u|_1 / d  sign(u)

S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.compressors.codec import Lossy
from paceline.compressors.two_levels import TwoLevels, mean_size, two_level_bytes
from paceline.protocols import Wire
from paceline.transport import Comm
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class EfSign(Lossy):
    name: ClassVar[str] = "efsign"

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", two_level_bytes(layout, piece, numbers=1)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> TwoLevels:
        return TwoLevels(layout, comm.size, mean_size, numbers=1)

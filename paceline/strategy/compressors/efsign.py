"""Signs with one scale per tensor, which keeps the magnitude of the gradient. It is made for feedback.

    C(u) = |u|_1 / d  sign(u)

S. P. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline.comm.transport import Comm
from paceline.protocols import Wire
from paceline.strategy.compressors._bits import Array, blocks
from paceline.strategy.compressors._codec import Lossy
from paceline.strategy.compressors._two_levels import TwoLevels, total, two_level_bytes
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class EfSign(Lossy):
    name: ClassVar[str] = "efsign"

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", two_level_bytes(layout, piece, numbers=1)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> TwoLevels:
        return TwoLevels(layout, comm.size, mean_size, numbers=1)


def mean_size(x: Array) -> tuple[float, ...]:
    """Return |x|_1 / d."""
    return (sum(total(np.abs(x[part])) for part in blocks(x.size)) / x.size,)

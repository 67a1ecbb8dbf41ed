"""One bit per element; each tensor carries the mean of its negative elements and the mean of the rest.

F. Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
Speech DNNs", Interspeech 2014.
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
class OneBit(Lossy):
    name: ClassVar[str] = "onebit"

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", two_level_bytes(layout, piece, numbers=2)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> TwoLevels:
        return TwoLevels(layout, comm.size, mean_of_each_sign, numbers=2)


def mean_of_each_sign(x: Array) -> tuple[float, ...]:
    """Return the mean of the negative elements and the mean of the rest; 0 if there are none."""
    below = above = 0.0
    count = 0
    for part in blocks(x.size):
        below += total(np.minimum(x[part], 0))
        above += total(np.maximum(x[part], 0))
        count += int(np.count_nonzero(x[part] < 0))
    return below / max(1, count), above / max(1, x.size - count)

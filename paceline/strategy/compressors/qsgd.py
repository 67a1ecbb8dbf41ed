"""Divide the norm of each bucket into equal levels, and round each element at random to one of the two nearest levels.

The probabilities are such that the expected result is the element itself.

    omega = min(bucket / levels^2, sqrt(bucket) / levels)

D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.comm.transport import Comm
from paceline.protocols import Wire
from paceline.strategy.compressors._codec import Lossy, check_least
from paceline.strategy.compressors._dice import Dice
from paceline.strategy.compressors._stochastic import Stochastic, stochastic_bytes
from paceline.types import Chunk, Layout


@dataclass(frozen=True)
class Qsgd(Lossy):
    """The compressor. With the default of 7 levels, an element and its sign take 4 bits."""

    levels: int = 7
    bucket: int = 512
    seed: int = 0

    name: ClassVar[str] = "qsgd"
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = False
    shrinks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(self, "levels", 1, 127)
        check_least(self, "bucket", 1)

    @property
    def omega(self) -> float:
        return min(self.bucket / self.levels**2, math.sqrt(self.bucket) / self.levels)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", stochastic_bytes(piece.numel, self.levels, self.bucket)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Stochastic:
        factor = 1 / (1 + self.omega) if shrunk else 1.0
        return Stochastic(comm.size, Dice(self.seed, comm.rank), self.levels, self.bucket, "l2", factor)

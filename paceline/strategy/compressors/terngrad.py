"""Round to -1, 0 or 1 times the largest magnitude of a bucket, at random so that the mean is right: 2 bits.

    omega = (sqrt(bucket) - 1) / 2

With `clip`, numbers are first clipped to `clip` times the root mean square of their bucket (in the paper, 2.5 times the
standard deviation). This makes the largest magnitude, and so the noise, smaller; the mean is then no longer exact.

W. Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NeurIPS 2017,
which uses one magnitude per layer; inside a bucket, magnitudes vary less.
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
class TernGrad(Lossy):
    bucket: int = 2048
    seed: int = 0
    clip: float = 0.0  # times the root mean square; 0 does not clip

    name: ClassVar[str] = "terngrad"
    contractive: ClassVar[bool] = False
    shrinks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(self, "bucket", 1)
        check_least(self, "clip", 0)

    @property
    def biased(self) -> bool:
        return self.clip > 0

    @property
    def omega(self) -> float:
        return (math.sqrt(self.bucket) - 1) / 2

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("gather", stochastic_bytes(piece.numel, 1, self.bucket)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Stochastic:
        factor = 1 / (1 + self.omega) if shrunk else 1.0
        return Stochastic(comm.size, Dice(self.seed, comm.rank), 1, self.bucket, "max", factor, self.clip)

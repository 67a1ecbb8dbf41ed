"""Deep gradient compression: top-k with momentum corrected for unsent elements, and a density that falls in warm-up.

    u = momentum u + g        v = v + u        send the largest of v; where it was sent, u = v = 0

Stage e of the warm-up sends ratio^((e+1)/(warmup+1)) of the elements. A stage has `stage` steps (in the paper, an
epoch). `clip` bounds the norm of a worker's gradient by clip / sqrt(workers) before it is added; a chunk gets its share
of that. The optimizer must have no momentum of its own.

Y. Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR 2018.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm
from paceline.protocols import Rounds, Wire
from paceline.strategy.compressors._codec import Lossy, by_name, check_least, check_momentum, check_ratio, put_back
from paceline.strategy.compressors._select import count_of
from paceline.strategy.compressors._sparse import EACH
from paceline.strategy.compressors.topk import Largest
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Dgc(Lossy):
    ratio: float = 0.001
    momentum: float = 0.9
    clip: float = 0.0
    warmup: int = 4
    stage: int = 100

    name: ClassVar[str] = "dgc"
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = False
    remembers: ClassVar[bool] = True
    takes_momentum: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ratio(self)
        check_momentum(self)
        check_least(self, "clip", 0)
        check_least(self, "warmup", 0)
        check_least(self, "stage", 1)

    def density(self, step: int) -> float:
        """Return the share of elements that is sent at a step."""
        stage = min(self.warmup, step // self.stage)
        return float(self.ratio ** ((stage + 1) / (self.warmup + 1)))

    @property
    def varies(self) -> str:
        if self.density(0) == self.ratio:
            return ""
        return (
            f"sends more in its first {self.warmup * self.stage:,} steps, up to {100 * self.density(0):.3g} % of the "
            f"elements instead of {100 * self.ratio:.3g} %: the bytes shown are those after them"
        )

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        """Return the rounds after the warm-up."""
        return (Wire("gather", EACH * count_of(self.ratio, piece.numel)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> Corrected:
        return Corrected(self, layout, comm.size)


class Corrected:
    """The velocity u, the unsent sum v, and the step count of every range.

    A new plan may cut the ranges differently.
    """

    def __init__(self, member: Dgc, layout: Layout, size: int) -> None:
        import torch

        self._member, self._layout, self._size = member, layout, size
        self._velocity, self._owed = torch.zeros(layout.body), torch.zeros(layout.body)
        self._ranges = Ranges(layout.body, 0)

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        step = self._ranges.count(piece.start, piece.stop)
        velocity, owed = (vector[piece.start : piece.stop] for vector in (self._velocity, self._owed))
        velocity.mul_(self._member.momentum).add_(src, alpha=self._clipping(piece, src))
        owed.add_(velocity)
        inner = Largest(self._member.density(step), self._size)
        sent = inner.rounds(piece, owed, dst, None)
        payload = next(sent)
        for where, _ in inner.decode(piece, payload.tensor.numpy()):
            velocity.numpy()[where] = 0
            owed.numpy()[where] = 0
        yield payload
        yield from sent

    def _clipping(self, piece: Chunk, src: Tensor) -> float:
        """Return the factor that clips src, which is a worker's gradient divided by the number of workers."""
        if not self._member.clip:
            return 1.0
        share = math.sqrt(piece.numel / self._layout.body)
        limit = self._member.clip / math.sqrt(self._size) / self._size * share
        return min(1.0, limit / (float(src.norm()) + 1e-12))

    def state(self) -> Mapping[str, Any]:
        return {
            "velocity": by_name(self._layout, self._velocity),
            "owed": by_name(self._layout, self._owed),
            "steps": self._ranges.most,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        put_back(self._layout, self._velocity, state.get("velocity", {}))
        put_back(self._layout, self._owed, state.get("owed", {}))
        self._ranges = Ranges(self._layout.body, state.get("steps", 0))


class Ranges:
    """Step counts of the ranges of a vector; a chunk of a new plan continues with the counts of the ranges it covers.

    | 7 steps | 8 steps | 7 steps |        a step count for each range between two cuts
    """

    def __init__(self, numel: int, times: int) -> None:
        self._cuts, self._times = [0, numel], [times]

    @property
    def most(self) -> int:
        return max(self._times)

    def count(self, start: int, stop: int) -> int:
        """Count one more step of [start, stop), and return how many there were before."""
        first, last = self._cut(start), self._cut(stop)
        before = max(self._times[first:last])
        self._cuts[first + 1 : last], self._times[first:last] = [], [before + 1]
        return before

    def _cut(self, at: int) -> int:
        """Return the index of the range that begins at a position, after cutting there."""
        place = bisect_left(self._cuts, at)
        if self._cuts[place] != at:
            self._cuts.insert(place, at)
            self._times.insert(place, self._times[place - 1])
        return place

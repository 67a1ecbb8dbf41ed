"""Half the bytes: numbers are sent as fp16 or bf16.

Gradients are divided by the number of ranks before they are rounded, so the sum overflows only if the mean does; shm
adds in float32 and rounds once. A value that becomes infinite by rounding or by summing is an error. There is no such
check with a loss scale, which looks for infinity in the mean gradient, and none on a GPU, where a check would block the
stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm
from paceline.errors import BadMember, NonFinite
from paceline.protocols import Payload, Rounds, Wire
from paceline.strategy.compressors._codec import SMALLER, ArenaCodec, Stateless, not_finite
from paceline.strategy.compressors.traits import CompressorTraits
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor

SCALED = "where the loss is scaled: loss_scale=True"


@dataclass(frozen=True)
class Cast(CompressorTraits):
    to: str = "bf16"

    name: ClassVar[str] = "cast"
    loss: ClassVar[str] = "rounding"
    summable: ClassVar[bool] = True
    biased: ClassVar[bool] = False
    looks: ClassVar[bool] = True  # for NaN and infinity

    def __post_init__(self) -> None:
        if self.to not in ("fp16", "bf16"):
            raise BadMember(f"cast({self.to})", why="numbers can travel as fp16 or bf16", remedy="cast(bf16)")

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return (Wire("sum", piece.numel * min(2, layout.itemsize)),)

    def operator(self, layout: Layout, comm: Comm, shared: bool, shrunk: bool) -> CastCodec:
        return CastCodec(self, layout, comm, shared)

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> ArenaCodec | None:
        """Return a codec whose operator checks rounded values for infinity."""
        if dtype.itemsize <= 2:
            return None
        operator = self.operator(layout, comm, shared, False)
        return ArenaCodec(f"{self}", operator, layout, comm, shared, kind=self.name, looks=False, wide=True)

    def scaled(self) -> ScaledCast:
        """Return the variant for use with a loss scale."""
        return ScaledCast(self.to)


class ScaledCast(Cast):
    """A cast that lets infinity travel: the step is then skipped on all ranks."""

    looks: ClassVar[bool] = False


class CastCodec(Stateless):
    """An operator with two more vectors of half the arena's size: the rounded values, and their sum."""

    def __init__(self, member: Cast, layout: Layout, comm: Comm, shared: bool) -> None:
        import torch

        half = {"fp16": torch.float16, "bf16": torch.bfloat16}[member.to]
        self._to, self._layout, self._rank, self._largest = member.to, layout, comm.rank, torch.finfo(half).max
        self._small = comm.allocate(layout.body, half)
        self._looks = member.looks and not self._small.is_cuda
        self._sum = comm.allocate_result(layout.body, half) if shared else self._small.new_zeros(layout.body)

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        part = slice(piece.start, piece.stop)
        self._small[part].copy_(src)
        if self._looks:
            self._look(piece, src, self._small[part])
        if rest is not None:
            rest.sub_(self._small[part])
        yield Payload("sum", self._small[part], self._sum[part])
        dst.copy_(self._sum[part])
        if self._looks:
            self._look_back(piece, self._sum[part])

    def _look(self, piece: Chunk, src: Tensor, small: Tensor) -> None:
        """Check in one pass that all rounded values are finite; only if not, find the tensor."""
        if _finite(small):
            return
        for name, wrong, numel in not_finite(self._layout, piece, src):
            raise NonFinite(
                f"rank {self._rank}: what it sends of {name} is not finite",
                why=f"{wrong:,} of {numel:,} numbers are NaN or infinite",
                remedy=f"{SMALLER}; {SCALED}",
            )
        self._raise(f"rank {self._rank}: what it sends", piece, small)

    def _look_back(self, piece: Chunk, total: Tensor) -> None:
        """Refuse a sum with infinity; all addends were finite, so the sum is too large."""
        if not _finite(total):
            self._raise("the sum of all ranks", piece, total)

    def _raise(self, what: str, piece: Chunk, vector: Tensor) -> None:
        for name, wrong, numel in not_finite(self._layout, piece, vector):
            remedy = "--compress none" if self._to == "bf16" else "--compress 'cast(bf16)'"
            raise NonFinite(
                f"{what} of {name} does not fit into {self._to}",
                why=f"{wrong:,} of {numel:,} numbers are above {self._largest:g}",
                remedy=f"{remedy}; {SCALED}",
            )


def _finite(vector: Tensor) -> bool:
    return all(math.isfinite(end) for end in vector.aminmax())

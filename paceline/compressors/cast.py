"""Half the bytes: numbers travel as fp16 or bf16.

Gradients are divided by the number of ranks before they are rounded, so the sum cannot overflow where the
mean does not; shm adds in float32 and rounds once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import BadMember
from paceline.menu import Member
from paceline.protocols import Comm, Payload, Rounds
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cast(Member):
    to: str = "bf16"

    name: ClassVar[str] = "cast"
    loss: ClassVar[str] = "rounding"
    summable: ClassVar[bool] = True
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = True
    aligned: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.to not in ("fp16", "bf16"):
            raise BadMember(f"cast({self.to})", why="numbers can travel as fp16 or bf16", remedy="cast(bf16)")

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        return chunk.numel * min(2, layout.itemsize)

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> CastCodec | None:
        if dtype.itemsize <= 2:
            return None
        return CastCodec(self.to, layout, comm, shared)


class CastCodec:
    """Two vectors of half the size beside the arena: what leaves and what comes back."""

    def __init__(self, to: str, layout: Layout, comm: Comm, shared: bool) -> None:
        import torch

        half = {"fp16": torch.float16, "bf16": torch.bfloat16}[to]
        self._small = comm.allocate(layout.numel, half)
        self._sum = comm.allocate_result(layout.numel, half) if shared else torch.zeros(layout.numel, dtype=half)

    def rounds(self, chunk: Chunk, src: Tensor, dst: Tensor) -> Rounds:
        part = slice(chunk.start, chunk.stop)
        self._small[part].copy_(src)
        yield Payload("sum", self._small[part], self._sum[part])
        dst.copy_(self._sum[part])

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass

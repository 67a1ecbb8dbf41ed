"""Error feedback: what was not sent is added to the next gradient.

    u = g + e        send C(u)        e = u - C(u)

The sum of all gradients is the sum of what was sent plus the last residual. C must be contractive, otherwise e
grows without bound: unbiased compressors are used in their contractive form (randomk unscaled, the stochastic
ones divided by 1 + omega).

F. Seide et al., 2014; S. P. Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.compressors.codec import ArenaCodec, Operator, by_name, put_back, wires
from paceline.compressors.topk import TopK
from paceline.menu import Member, nested
from paceline.protocols import Rounds, Wire
from paceline.transport import Comm
from paceline.types import Chunk, Layout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Feedback(Member):
    inner: Any = nested("paceline.compressors:MENU", default=TopK())

    name: ClassVar[str] = "feedback"
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = False
    shrinks: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def __str__(self) -> str:
        return f"{self.name}({self.inner})"

    @property
    def loss(self) -> str:
        return str(self.inner.loss)

    @property
    def summable(self) -> bool:
        return bool(self.inner.summable)

    @property
    def aligned(self) -> bool:
        return bool(self.inner.aligned)

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        found: Sequence[Wire] = self.inner.body(layout, piece, size)
        return found

    def wires(self, layout: Layout, chunk: Chunk, size: int) -> Sequence[Wire]:
        return wires(self, layout, chunk, size)

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        return int(self.inner.nbytes(layout, chunk))

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> ArenaCodec:
        operator = FeedbackOperator(layout, self.inner.operator(layout, comm, shared, shrunk=True))
        kind = f"{self.name}({self.inner.name})"
        return ArenaCodec(f"{self}", operator, layout, comm, shared, kind=kind)


class FeedbackOperator:
    """One vector beside the arena: between steps it holds e, while a chunk is coded u."""

    def __init__(self, layout: Layout, inner: Operator) -> None:
        import torch

        self._layout, self._inner = layout, inner
        self.memory = torch.zeros(layout.body)

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        owed = self.memory[piece.start : piece.stop].add_(src)
        return self._inner.rounds(piece, owed, dst, owed)

    def state(self) -> Mapping[str, Any]:
        return {"memory": by_name(self._layout, self.memory), "inner": dict(self._inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        put_back(self._layout, self.memory, state.get("memory", {}))
        self._inner.restore(state.get("inner", {}))

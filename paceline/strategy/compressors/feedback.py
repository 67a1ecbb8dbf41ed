"""Error feedback: the part of a gradient that was not sent is added to the next gradient.

    u = gamma g + beta e        send C(u)        e = u - C(u)        beta = gamma = 1 by default

With beta = gamma = 1, the sum of all gradients equals the sum of all sent values plus the last residual. C must be
contractive, otherwise e grows without bound: unbiased compressors are used in their contractive form (randomk unscaled,
the stochastic ones divided by 1 + omega).

F. Seide et al., 2014; S. P. Karimireddy et al., "Error Feedback Fixes SignSGD", ICML 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm
from paceline.errors import BadMember
from paceline.menu.menu import nested
from paceline.protocols import Compressor, Rounds, Wire
from paceline.strategy.compressors._codec import ArenaCodec, Lossy, Operator, by_name, check_least, put_back
from paceline.strategy.compressors.topk import TopK
from paceline.strategy.compressors.traits import CompressorTraits
from paceline.types import Chunk, Layout, Slot

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Feedback(CompressorTraits):
    inner: Lossy = nested("paceline.strategy.compressors:MENU", default=TopK())
    beta: float = 1.0
    gamma: float = 1.0

    name: ClassVar[str] = "feedback"
    biased: ClassVar[bool] = False
    contractive: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least(self, "beta", 0, 1)
        if not self.gamma > 0:
            raise BadMember(f"{self}", why=f"gamma is above 0; got {self.gamma:g}", remedy=f"feedback({self.inner})")

    def __str__(self) -> str:
        words = [f"{key}={value:g}" for key, value in (("beta", self.beta), ("gamma", self.gamma)) if value != 1]
        return f"{self.name}({', '.join([f'{self.inner}', *words])})"

    @property
    def wrapped(self) -> Compressor:
        return self.inner

    @property
    def loss(self) -> str:
        return self.inner.loss

    @property
    def summable(self) -> bool:
        return self.inner.summable

    @property
    def aligned(self) -> bool:
        return self.inner.aligned

    @property
    def merges(self) -> bool:
        return self.inner.merges

    @property
    def varies(self) -> str:
        return self.inner.varies

    def body(self, layout: Layout, piece: Chunk, size: int) -> Sequence[Wire]:
        return self.inner.body(layout, piece, size)

    def nbytes(self, layout: Layout, chunk: Chunk) -> int:
        return self.inner.nbytes(layout, chunk)

    def check(self, slots: Sequence[Slot]) -> None:
        self.inner.check(slots)

    def bind(self, layout: Layout, comm: Comm, dtype: Any, shared: bool) -> ArenaCodec:
        operator = FeedbackOperator(
            layout, self.inner.operator(layout, comm, shared, shrunk=True), self.beta, self.gamma
        )
        kind = f"{self.name}({self.inner.name})"
        return ArenaCodec(f"{self}", operator, layout, comm, shared, kind=kind)


class FeedbackOperator:
    """An operator with one more vector of the arena's size. It holds e between steps, and u while a chunk is coded."""

    def __init__(self, layout: Layout, inner: Operator, beta: float = 1.0, gamma: float = 1.0) -> None:
        import torch

        self._layout, self._inner, self._beta, self._gamma = layout, inner, beta, gamma
        self.memory = torch.zeros(layout.body)

    def rounds(self, piece: Chunk, src: Tensor, dst: Tensor, rest: Tensor | None) -> Rounds:
        owed = self.memory[piece.start : piece.stop]
        if self._beta != 1.0:
            owed.mul_(self._beta)
        owed.add_(src, alpha=self._gamma)
        return self._inner.rounds(piece, owed, dst, owed)

    def state(self) -> Mapping[str, Any]:
        return {"memory": by_name(self._layout, self.memory), "inner": dict(self._inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        put_back(self._layout, self.memory, state.get("memory", {}))
        self._inner.restore(state.get("inner", {}))

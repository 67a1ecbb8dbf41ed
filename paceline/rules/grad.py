"""All ranks apply the mean gradient: the same as one process on the concatenated batch.

    x <- optimizer(x, 1/n sum_j grad_j(x))

The fresh gradient is divided on its way into the arena. For a loss that averages over equal counts on every
rank this is exact; a loss over unequal counts (masked tokens) is a mean of means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import PacelineError, WorkloadError
from paceline.menu import Member
from paceline.types import Chunk, Lane

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from paceline.engine.engine import Engine


@dataclass(frozen=True)
class Grad(Member):
    name: ClassVar[str] = "grad"
    lanes: ClassVar[tuple[Lane, ...]] = (Lane("gradient", needs_consensus=True, lossy_ok=True),)
    leaves: ClassVar[str] = "backward"
    due: ClassVar[str] = "update"

    def bind(self, engine: Engine, parameters: Sequence[Tensor], optimizer: Optimizer) -> GradDuty:
        return GradDuty(engine, parameters, optimizer)


class GradDuty:
    """Moves gradients into the arena and hands the optimizer views of the result.

    On shm the result is one memory for all ranks of the host, so nobody may write into it. Some optimizers
    do write into gradients; the first update therefore works on a copy and looks whether it was touched.
    """

    def __init__(self, engine: Engine, parameters: Sequence[Tensor], optimizer: Optimizer) -> None:
        import torch

        self._multiply, self._norm = torch.mul, torch.linalg.vector_norm
        self._engine, self._optimizer = engine, optimizer
        self._parameters = [parameters[k] for k in engine.order]
        self._copies: list[Tensor] | None = None
        self._may_share: bool | None = None  # not known before the first update
        self.factor = 1.0  # what a fresh gradient is multiplied with; set before each step

    def reordered(self, moved: Sequence[int]) -> None:
        self._parameters = [self._parameters[slot] for slot in moved]
        self._copies = None

    def begin(self) -> None:
        pass

    def on_grad(self, slot: int) -> None:
        parameter = self._parameters[slot]
        fresh = parameter.grad
        if fresh is None:
            raise WorkloadError(
                f"the gradient of {self._engine.name_of(slot)} is gone",
                why="something took it before the exchange; was the model wrapped twice?",
            )
        if fresh.layout != self._engine.source(slot).layout:
            fresh = fresh.to_dense()
        self._multiply(fresh, self.factor, out=self._engine.source(slot))
        parameter.grad = None
        self._engine.offer(slot)

    def on_back(self, chunk: Chunk) -> None:
        pass

    def norm(self) -> float:
        """The global norm of the mean gradient, the same number on every rank; NaN or infinite if it is not finite."""
        parts = [float(self._norm(arena.mean.float())) for arena in self._engine.arenas]
        return float(sum(part * part for part in parts) ** 0.5)

    def finite(self) -> bool:
        largest = [float(self._norm(arena.mean, ord=float("inf"))) for arena in self._engine.arenas]
        return all(value - value == 0 for value in largest)

    def give(self, scale: float = 1.0, private: bool = False) -> None:
        """Set p.grad to the mean gradient, times `scale`; to None where no rank had one."""
        self._learning = self._may_share is None and scale == 1.0 and not private
        views = self._views(scale, private)
        counts = [count for arena in self._engine.arenas for count in arena.counts()]
        for parameter, view, count in zip(self._parameters, views, counts, strict=True):
            parameter.grad = view if count > 0 else None

    def _views(self, scale: float, private: bool) -> list[Tensor]:
        arenas = self._engine.arenas
        if scale == 1.0 and not private and (self._may_share or not any(arena.shared for arena in arenas)):
            return [view for arena in arenas for view in arena.result_views]
        if self._copies is None:
            self._copies = [arena.result.new_empty(arena.result.shape) for arena in arenas]
        for copy, arena in zip(self._copies, arenas, strict=True):
            self._multiply(arena.result, scale, out=copy)
        return [view for copy, arena in zip(self._copies, arenas, strict=True) for view in arena.views(copy)]

    def update(self) -> None:
        """Run the optimizer on what `give` handed out, and watch that shared results stay untouched."""
        before = [arena.result._version for arena in self._engine.arenas]
        self._optimizer.step()
        if self._learning:
            self._learn_to_share()
        if [arena.result._version for arena in self._engine.arenas] != before and self._may_share:
            raise PacelineError(
                f"{type(self._optimizer).__name__} wrote into gradients, which it had not done in its first step",
                why="the ranks of a host share the memory of the mean gradient",
                remedy="wrap(..., private_gradients=True)",
            )

    def _learn_to_share(self) -> None:
        """After the first update on a copy: share from now on if the optimizer only read it."""
        if self._copies is None:
            return
        pairs = zip(self._copies, self._engine.arenas, strict=True)
        self._may_share = all(bool((copy == arena.result).all()) for copy, arena in pairs)
        if self._may_share:
            self._copies = None

    def release(self) -> None:
        """The result will be written again: nobody may hold a view of it."""
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass

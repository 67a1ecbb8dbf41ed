"""All ranks apply the mean gradient: the same as one process on the concatenated batch.

    x <- optimizer(x, 1/n sum_j grad_j(x))

The fresh gradient is divided on its way into the arena. For a loss that averages over equal counts on every
rank this is exact; a loss over unequal counts (masked tokens) is a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import PacelineError, WorkloadError
from paceline.strategy.rules._context import Context
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane, Spent

if TYPE_CHECKING:
    from torch import Tensor

OUTSIDE = -1  # of backward, as autograd numbers its tasks


@dataclass(frozen=True)
class Grad(RuleTraits):
    name: ClassVar[str] = "grad"
    lanes: ClassVar[tuple[Lane, ...]] = (Lane("gradient", needs_consensus=True, lossy_ok=True, tail="flags"),)
    leaves: ClassVar[str] = "backward"
    same_result: ClassVar[bool] = True
    averages_gradients: ClassVar[bool] = True

    def bind(self, context: Context) -> GradDuty:
        if context.open_gates is None:
            return GradDuty(context)
        from paceline.strategy.rules._crossing import CrossingDuty

        return CrossingDuty(context)


class GradDuty:
    """Moves gradients into the arena and hands the optimizer views of the result.

    On shm the result is one memory for all ranks of the host, so nobody may write into it. Some optimizers
    do write into gradients; the first update therefore works on a copy and looks whether it was touched.
    """

    averages_gradients = True

    def __init__(self, context: Context) -> None:
        import torch

        self._multiply, self._norm, self._empty = torch.mul, torch.linalg.vector_norm, torch.empty_like
        self._graph_task = torch._C._current_graph_task_id
        self.context = context
        self.engine = context.open_lane(Grad.lanes[0], None)
        self._optimizer = context.optimizer
        self._number()
        self._may_share: bool | None = None  # not known before the first update
        self._learning = self._given = self._ordered = False
        self._ended = True  # the exchange of the step: nothing is under way before the first
        self.steps = 0
        self.release()

    def _number(self) -> None:
        """Slots follow the arena, whose order changes once: after the first step, or with a checkpoint."""
        self._parameters = [self.context.parameters[k] for k in self.engine.order]
        self._slots = {id(parameter): slot for slot, parameter in enumerate(self._parameters)}
        self._copies: list[Tensor] | None = None

    def begin(self) -> None:
        self._weight: float | None = None  # not known before the batch is
        self._take_back()
        self.engine.begin(self.steps)
        self._ended = False

    @property
    def factor(self) -> float:
        """Return what gradients are multiplied by on their way into the arena: one number for all of a step."""
        if self._weight is None:
            scale = 1.0 if self.context.loss_scale is None else self.context.loss_scale.value
            self._weight = self.context.factor() / scale
        return self._weight

    def _take_back(self) -> None:
        """Gradients that were given for a step that was then skipped would be added to."""
        if self._given:
            self.release()
        self._given = False

    def on_held(self, parameter: Tensor) -> None:
        """Another gradient of a parameter that leaves in step(): it must not be added to the mean."""
        if self._given:
            raise self._too_late(self._slots[id(parameter)])

    def _too_late(self, slot: int) -> WorkloadError:
        return WorkloadError(
            f"{self.engine.name_of(slot)} got a gradient too late for step {self.steps}",
            why="a collective, an evaluation or synchronize() after backward has ended its exchange",
            remedy="have all gradients of a step before that, or call it after step()",
        )

    def on_grad(self, parameter: Tensor) -> None:
        """The gradient of a parameter is complete: it moves into the arena, scaled on the way."""
        slot, fresh = self._slots[id(parameter)], parameter.grad
        if self._ended and slot not in self.engine.arrived:
            raise self._too_late(slot)
        if slot in self.engine.arrived:
            raise self.context.twice(self.engine.name_of(slot), self.steps)
        if fresh is None:
            raise WorkloadError(
                f"the gradient of {self.engine.name_of(slot)} is gone",
                why="something took it before the exchange; was the model wrapped twice?",
            )
        if fresh.layout != self.engine.source(slot).layout:
            fresh = fresh.to_dense()
        since = self.engine.glance()
        self._multiply(fresh.detach(), self.factor, out=self.engine.source(slot))  # backward may have kept a graph
        parameter.grad = None
        self.engine.offer(slot, since)

    def discard(self) -> None:
        """What has left comes back first, for others wait for it; what `synchronize` gave is of the past."""
        self.finish()
        self._take_back()

    @property
    def under_way(self) -> bool:
        """Whether gradients have left for a step whose exchange has not ended."""
        return not self._ended and bool(self.engine.arrived)

    def finish(self) -> None:
        """What has begun to leave is exchanged to its end, so that ranks are at the same call; step() updates.

        Not inside backward, where more is to come: a collective there (SyncBatchNorm) takes its place among the others.
        """
        if self.under_way and self._graph_task() == OUTSIDE:
            self._end()

    def _end(self) -> None:
        """The rest leaves, and all of it is back."""
        if not self._ended:
            self._offer_rest()
            self.engine.finish()
            self._ended = True

    def close(self) -> None:
        """Nothing is held."""

    def leave(self) -> None:
        """Most has left from the hooks of backward."""
        self._offer_rest()

    def _offer_rest(self) -> None:
        """Gradients that no hook has told of: of an earlier backward of this update, or put there by hand."""
        if self._given or len(self.engine.arrived) == len(self._parameters):
            return
        for slot in self.engine.missing():
            if self._parameters[slot].grad is not None:
                self.on_grad(self._parameters[slot])

    def wait(self) -> None:
        if not self._ended:
            self.engine.finish()
            self._ended = True

    def sound(self) -> bool:
        """Whether the mean gradient is finite, where a loss scale makes that a question. The same on every rank."""
        scale = self.context.loss_scale
        if scale is None:
            return True
        largest = [float(self._norm(arena.mean, ord=float("inf"))) for arena in self.engine.arenas]
        finite = all(value - value == 0 for value in largest)
        scale.record(finite)
        return finite

    def synchronize(self) -> None:
        """p.grad is the mean gradient now, in this rank's own memory."""
        self._end()
        self._give(self._clipping(), private=True)
        self._given = True

    def update(self) -> None:
        """Run the optimizer on the mean gradient, and watch that shared results stay untouched."""
        if not self._given:
            self._give(self._clipping(), self.context.private_gradients)
        before = [arena.result._version for arena in self.engine.arenas]
        self._optimizer.step()
        if self._learning:
            self._learn_to_share()
        elif self._may_share and [arena.result._version for arena in self.engine.arenas] != before:
            raise PacelineError(
                f"{type(self._optimizer).__name__} wrote into gradients, which it had not done in its first step",
                why="the ranks of a host share the memory of the mean gradient",
                remedy="wrap(..., private_gradients=True)",
            )
        self.steps += 1
        if not self._ordered:
            self.engine.adopt_order()
            self._number()
            self._ordered = True
        self.release()

    def update_with(self, closure: Callable[[], Tensor]) -> None:
        """For optimizers that call the model again: each evaluation is exchanged, its loss averaged."""
        self._optimizer.step(lambda: self._evaluate(closure))
        self.release()

    def _evaluate(self, closure: Callable[[], Tensor]) -> Any:
        """The mean loss of all ranks; p.grad is its gradient, and nothing of an evaluation before."""
        self.release()
        loss = closure()
        self._end()
        self._give(self._clipping(), private=True)
        share = loss.detach().view(1) / self.context.comm.size
        mean = self._empty(share)
        self.context.comm.all_sum(share, mean, "the loss").wait()
        self.engine.begin(self.steps)
        self._ended = False
        return mean[0]

    def _clipping(self) -> float:
        if self.context.clip_norm is None:
            return 1.0
        return min(1.0, self.context.clip_norm / (self.norm() + 1e-6))

    def norm(self) -> float:
        """The global norm of the mean gradient, the same number on every rank."""
        parts = [float(self._norm(arena.mean.float())) for arena in self.engine.arenas]
        return float(sum(part * part for part in parts) ** 0.5)

    def _give(self, scale: float = 1.0, private: bool = False) -> None:
        """Set p.grad to the mean gradient, times `scale`; to None where no rank had one."""
        self._learning = self._may_share is None and scale == 1.0 and not private
        views = self._views(scale, private)
        counts = [count for arena in self.engine.arenas for count in arena.counts()]
        for slot, (parameter, view, count) in enumerate(zip(self._parameters, views, counts, strict=True)):
            parameter.grad = view if self._moves(slot, count) else None

    def _moves(self, slot: int, count: float) -> bool:
        """Whether a slot is updated: `count` ranks had a gradient, or it is owed some and was not frozen since."""
        return count > 0 or (self._parameters[slot].requires_grad and self.engine.holds(slot, count))

    def _views(self, scale: float, private: bool) -> list[Tensor]:
        arenas = self.engine.arenas
        if scale == 1.0 and not private and (self._may_share or not any(arena.shared for arena in arenas)):
            return [view for arena in arenas for view in arena.result_views]
        if self._copies is None:
            self._copies = [self._empty(arena.result) for arena in arenas]
        for copy, arena in zip(self._copies, arenas, strict=True):
            self._multiply(arena.result, scale, out=copy)
        return [view for copy, arena in zip(self._copies, arenas, strict=True) for view in arena.views(copy)]

    def _learn_to_share(self) -> None:
        """After the first update on a copy: share from now on if the optimizer only read it."""
        if self._copies is None:
            return
        pairs = zip(self._copies, self.engine.arenas, strict=True)
        self._may_share = all(bool((copy == arena.result).all()) for copy, arena in pairs)
        if self._may_share:
            self._copies = None

    def release(self) -> None:
        """The result will be written again: nobody may hold a view of it."""
        for parameter in self._parameters:
            parameter.grad = None

    def take_spent(self) -> Spent:
        """Nothing passes outside of step()."""
        return Spent()

    def staleness(self) -> Mapping[str, Any]:
        """Empty: no rank is ahead of another."""
        return {}

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "order": self.engine.names if self._ordered else []}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Chunks hold the tensors that they held when the checkpoint was written."""
        self.steps = state["steps"]
        if state.get("order"):
            self._ordered = self.engine.adopt_names(state["order"])
            self._number()

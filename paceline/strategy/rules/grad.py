"""All ranks apply the mean gradient: the same as one process on the concatenated batch.

    x <- optimizer(x, 1/n sum_j grad_j(x))

The fresh gradient is divided on its way into the arena. For a loss that averages over equal counts on every
rank this is exact; a loss over unequal counts (masked tokens) is a mean of means.

A backward exchanges what it added, and p.grad is the mean when it returns, as with torch's DDP:

    backward   first gradient    set aside p.grad of earlier backwards
               every gradient    into the arena, and on its way
               end               wait; p.grad = set aside + mean
    step       the optimizer, on p.grad as the loop left it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import WorkloadError
from paceline.strategy.rules._clip import clip
from paceline.strategy.rules._context import Context
from paceline.strategy.rules._handover import Handover
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane, Spent

if TYPE_CHECKING:
    from torch import Tensor

OUTSIDE = -1  # autograd gives this number if no backward runs


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
    """Moves gradients into the arena, and sets p.grad to the mean when the exchange has ended.

    A step has one exchange for each backward. If no backward has begun one, step() makes one, because other ranks may
    have gradients.
    """

    averages_gradients = True
    waits_in_backward = True
    refusal: WorkloadError | None = None

    def __init__(self, context: Context) -> None:
        import torch

        self._multiply, self._norm, self._empty = torch.mul, torch.linalg.vector_norm, torch.empty_like
        self._graph_task = torch._C._current_graph_task_id
        self.context = context
        self.engine = context.open_lane(Grad.lanes[0], None)
        self._hand = Handover(self.engine.arenas, context.private_gradients)
        self._number()
        self._ordered = False
        self._opened = False  # a backward has begun to send
        self._ended = True  # nothing is under way
        self._exchanged = False
        self._finite = True
        self._spent = Spent()
        # Before autograd adds to it, p.grad is set aside: ranks may reach different parameters first.
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        self._hooks = [parameter.register_hook(self._before) for parameter in trained]
        self.steps = 0
        self.release()

    def _number(self) -> None:
        """Number the slots as in the arena, whose order changes once: after the first step, or with a checkpoint."""
        self._parameters = [self.context.parameters[k] for k in self.engine.order]
        self._slots = {id(parameter): slot for slot, parameter in enumerate(self._parameters)}
        self._hand.number(self._parameters)

    def _before(self, fresh: Tensor) -> None:
        """Detect a new backward before autograd adds its first gradient to p.grad."""
        if not self._opened:
            self._hand.set_aside()

    @property
    def exchanged(self) -> bool:
        """Whether p.grad is the mean of this step. It is not if the loop has skipped a step and called zero_grad."""
        return self._exchanged and not (self.waits_in_backward and self._hand.discarded)

    @exchanged.setter
    def exchanged(self, exchanged: bool) -> None:
        self._exchanged = exchanged

    def begin(self) -> None:
        self.engine.begin(self.steps)
        self._ended = self._opened = self.exchanged = False
        self._finite = True

    def _open_exchange(self) -> None:
        """Open an exchange, for the first gradient of a backward, or in a step without one."""
        if self._ended:
            self.engine.begin(self.steps)
            self._ended = False
        self._opened, self.exchanged = True, False
        scale = 1.0 if self.context.loss_scale is None else self.context.loss_scale.value
        self.factor = self.context.factor() / scale  # one number for the whole exchange
        self._hand.set_aside()

    def on_held(self, parameter: Tensor) -> None:
        """Set aside earlier means now; the gradient itself leaves at the end of backward."""
        if not self._opened:
            self._open_exchange()

    def on_local(self, parameter: Tensor) -> None:
        """Record that a gradient was added locally: p.grad is no longer the mean. The next exchange includes it."""
        self.exchanged = self._hand.holds_means = False

    def on_grad(self, parameter: Tensor) -> None:
        """Move the complete gradient of a parameter into the arena, and scale it on the way."""
        if not self._opened:
            self._open_exchange()
        engine, slot, fresh = self.engine, self._slots[id(parameter)], parameter.grad
        if slot in engine.arrived:
            raise self._twice(slot)
        if fresh is None:
            raise WorkloadError(
                f"the gradient of {engine.name_of(slot)} is gone",
                why="something took it before the exchange; was the model wrapped twice?",
            )
        source = engine.source(slot)
        if fresh.layout != source.layout:
            fresh = fresh.to_dense()
        if fresh.requires_grad:  # backward was called with create_graph
            fresh = fresh.detach()
        since = engine.glance()
        self._multiply(fresh, self.factor, out=source)
        parameter.grad = None
        engine.offer(slot, since)

    def _twice(self, slot: int) -> WorkloadError:
        return WorkloadError(
            f"{self.engine.name_of(slot)} got a second gradient in one backward, at step {self.steps}",
            why="its layer is used twice in the model and checkpointed with use_reentrant=True, or the backward before "
            "this one failed half way",
            remedy="checkpoint(..., use_reentrant=False); after an error in backward, end the job",
        )

    @property
    def under_way(self) -> bool:
        """Return whether gradients have left for an exchange that has not ended."""
        return not self._ended and bool(self.engine.arrived)

    def finish(self) -> None:
        """End an exchange that has begun, so that all ranks are at the same call.

        It does nothing inside backward, where collectives such as those of SyncBatchNorm are called in the same order
        on all ranks.
        """
        if self.under_way and self._graph_task() == OUTSIDE:
            self.end()

    def end(self) -> None:
        """End backward: send the rest, wait for everything, and set p.grad to the mean."""
        began = perf_counter()
        self._offer_rest()
        self.engine.finish()
        waited = perf_counter()
        self._ended, self._opened, self.exchanged = True, False, True
        if self.context.loss_scale is not None:
            self._finite = self._finite and self._results_are_finite()
        self._give()
        self._spent.waited += waited - began
        self._spent.updated += perf_counter() - waited

    def _offer_rest(self) -> None:
        """Send gradients that no hook reported: those of an earlier backward of this update, or set by hand."""
        if not self._opened:
            self._open_exchange()
        if len(self.engine.arrived) < len(self._parameters):
            for slot in self.engine.missing():
                if self._parameters[slot].grad is not None:
                    self.on_grad(self._parameters[slot])

    def discard(self) -> None:
        """Wait for exchanges that were started, because other ranks wait for them, too. Then forget the gradients."""
        self.finish()
        self.release()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def leave(self) -> None:
        """Send gradients that no hook has sent, unless the exchange has ended."""
        if not self.exchanged:
            self._offer_rest()

    def wait(self) -> None:
        if not self.exchanged:
            self.end()
            self._spent = Spent()  # step() measures its own time

    def sound(self) -> bool:
        """Return whether the mean gradient is finite, if there is a loss scale. The same on every rank."""
        if self.context.loss_scale is not None:
            self.context.loss_scale.record(self._finite)
        return self._finite

    def _results_are_finite(self) -> bool:
        largest = [float(self._norm(arena.mean, ord=float("inf"))) for arena in self.engine.arenas]
        return all(value - value == 0 for value in largest)

    def synchronize(self) -> None:
        """Set p.grad to the mean gradient if backward has not done so."""
        if not self.exchanged:
            self.end()

    def update(self) -> None:
        """Run the optimizer on p.grad as it is now."""
        if self.context.clip_norm is not None:
            clip(self._parameters, self.context.clip_norm, self._hand.copying)
        self.context.step()
        self.steps += 1
        if not self._ordered:
            self._hand.keep()
            self.engine.adopt_order()
            self._number()
            self._ordered = True

    def update_with(self, closure: Callable[[], Any], fresh: bool) -> Any:
        """Step an optimizer that calls the model again; each evaluation is exchanged and its loss averaged."""
        return self.context.step(lambda: self._evaluate(closure, fresh))

    def _evaluate(self, closure: Callable[[], Any], fresh: bool) -> Any:
        """Return the mean loss of all ranks and set p.grad to its gradient; `fresh` first clears older gradients."""
        if fresh:
            self.release()
        loss = closure()
        self.synchronize()
        if self.context.clip_norm is not None:
            clip(self._parameters, self.context.clip_norm, self._hand.copying)
        mean = self.context.mean(loss, "the loss")
        self.begin()
        return mean

    def _give(self) -> None:
        counts = [count for arena in self.engine.arenas for count in arena.counts()]
        everywhere = min(counts, default=1) > 0
        self._hand.give(
            [True] * len(counts) if everywhere else [self._moves(slot, count) for slot, count in enumerate(counts)]
        )

    def _moves(self, slot: int, count: float) -> bool:
        """Return whether a slot is updated. `count` ranks had a gradient; a residual may be left for it."""
        return count > 0 or (self._parameters[slot].requires_grad and self.engine.holds(slot, count))

    def keep(self) -> None:
        """Move p.grad out of results that are about to be overwritten."""
        self._hand.keep()

    def release(self) -> None:
        """Forget the gradients of this step."""
        self._hand.release()

    def take_spent(self) -> Spent:
        """Return the time spent on waiting and setting p.grad at the end of backward, since the last call."""
        spent, self._spent = self._spent, Spent()
        spent.in_backward = spent.waited + spent.updated
        return spent

    def staleness(self) -> Mapping[str, Any]:
        """Return an empty mapping: no rank is ahead of another."""
        return {}

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "order": self.engine.names if self._ordered else []}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state. Chunks hold the same tensors as when the checkpoint was written."""
        self.steps = state["steps"]
        if state.get("order"):
            self._hand.keep()
            self._ordered = self.engine.adopt_names(state["order"])
            self._number()

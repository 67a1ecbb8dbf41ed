"""The mean gradient, applied tensor by tensor while the next forward runs.

    step()          remember the learning rates; the remaining gradients leave later
    forward         before a layer runs: wait for its parameters' gradients, update exactly these tensors
    next backward   before its first gradient: update all tensors that no layer has used

The user's own optimizer makes every update. Its parameter groups temporarily hold only the tensors that are due, so
that per-tensor state, such as momentum and step counts, advances once per step, as with one call for all tensors.

There is no mean gradient when backward returns, so p.grad refuses every operation until step().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.errors import WorkloadError, WrongCommand
from paceline.strategy.rules._context import Context
from paceline.strategy.rules._withheld import Withholding
from paceline.strategy.rules.grad import OUTSIDE, GradDuty
from paceline.types import Spent

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.strategy.rules._lane import CrossingLaneEngine, LaneArena


class CrossingDuty(GradDuty):
    """Rule grad for schedules that cross the step. Until the plan is made, it works like rule grad without crossing."""

    engine: CrossingLaneEngine
    waits_in_backward = False

    def __init__(self, context: Context) -> None:
        _check(context.optimizer)
        self._optimizer = context.optimizer
        super().__init__(context)
        self.refusal = _refused("optimizer.step()")
        self._withholding = Withholding(context.parameters, self._refuse)
        assert context.open_gates is not None, "a schedule that crosses needs gates"
        self._gates = context.open_gates(self.arrive)
        self._pending: dict[int, None] = {}  # slots that are not updated yet, in the order of need
        self._stale: set[int] = set()  # slots that the last forward used before their update
        self._open = False

    def _refuse(self, operation: str) -> Exception:
        if self._graph_task() != OUTSIDE:  # autograd adds another gradient
            return self.context.twice("a parameter", self.steps)
        return _refused(f"{operation} on p.grad")

    def begin(self) -> None:
        """Begin a step; the last one may still be under way, so the exchange opens with the first gradient."""
        self._open, self.exchanged = False, False
        if not self.engine.crossing:
            self._open_step()

    def _open_step(self) -> None:
        began = perf_counter()
        self._stale = set(self._pending)
        self.finish()
        self._spent.in_backward += perf_counter() - began
        super().begin()
        self._open = True

    def on_grad(self, parameter: Tensor) -> None:
        if not self._open:
            self._open_step()
        if self._stale and self._slots[id(parameter)] in self._stale:
            raise _ungated(self.engine.name_of(self._slots[id(parameter)]))
        super().on_grad(parameter)
        self._withholding.withhold(parameter)

    def on_held(self, parameter: Tensor) -> None:
        """Hide a gradient until it leaves in step(), so that it is not added to a mean."""
        if self.exchanged:
            raise WorkloadError(
                f"{self.engine.name_of(self._slots[id(parameter)])} got a gradient too late for step {self.steps}",
                why="synchronize() after backward has ended its exchange",
                remedy="have all gradients of a step before that, or call it after step()",
            )
        self._withholding.hide(parameter)

    def _offer_rest(self) -> None:
        self._withholding.show()
        super()._offer_rest()

    def leave(self) -> None:
        if not self._open:
            self._open_step()
        super().leave()
        if self.engine.crossing:
            self.engine.close()

    def wait(self) -> None:
        if not self.engine.crossing:
            super().wait()

    def synchronize(self) -> None:
        if not self._open:
            self._open_step()
        spent = self._spent
        super().synchronize()
        self._spent = spent

    def update(self) -> None:
        if self.engine.crossing and not self.exchanged:
            self._postpone()
            return
        groups = self._values_of_groups()
        super().update()
        if self._values_of_groups() != groups:
            raise _not_by_tensor(self._optimizer, "it changes values of a parameter group in its step")

    def _postpone(self) -> None:
        """Remember learning rates and other settings; tensors are updated when forward reaches them."""
        self._gates.learned()
        self.release()
        self._hand.drop_writes()
        self._groups = [
            ({key: _copied(value) for key, value in values.items()}, {id(parameter) for parameter in parameters})
            for values, parameters in self._split_groups()
        ]
        self._pending = dict.fromkeys(range(len(self._parameters)))
        self._counts: dict[LaneArena, list[float]] = {}  # the flags that are back
        self.steps += 1

    def _split_groups(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        groups = self._optimizer.param_groups
        return [({k: v for k, v in group.items() if k != "params"}, group["params"]) for group in groups]

    def _values_of_groups(self) -> list[dict[str, str]]:
        return [{key: repr(value) for key, value in values.items()} for values, _ in self._split_groups()]

    # while the next step runs --------------------------------------------------------------------

    def arrive(self, positions: Sequence[int]) -> None:
        """Wait for these parameters and update them: forward has reached a layer that uses them."""
        if not self._pending:
            return
        due = [slot for slot in map(self._slot_at, positions) if slot in self._pending]
        if due:
            self._apply(due)
        else:
            self.engine.advance()

    def _slot_at(self, position: int) -> int:
        return self._slots[id(self.context.parameters[position])]

    @property
    def under_way(self) -> bool:
        return self._open and super().under_way

    def finish(self) -> None:
        """Apply all updates of the last step. Afterwards nothing is under way, and parameters may be read."""
        if self._pending:
            self._apply(list(self._pending))
        if self._open:
            super().finish()
        elif self.engine.crossing:
            self.engine.finish()  # a step that was not committed has nothing to apply

    def _apply(self, due: Sequence[int]) -> None:
        began = perf_counter()
        self.engine.need(due)
        waited = perf_counter()
        for slot in due:
            del self._pending[slot]
        self._update([slot for slot in due if self._moves(slot, self._count(slot))])
        if not self._pending:
            self.engine.finish()
        self._spent.waited += waited - began
        self._spent.updated += perf_counter() - waited

    def _count(self, slot: int) -> float:
        """Return how many ranks had a gradient for a slot; the flags of its arena have arrived with the slot."""
        arena, index = self.engine.place(slot)
        if arena not in self._counts:
            self._counts[arena] = arena.counts()
        return self._counts[arena][index]

    def _update(self, slots: Sequence[int]) -> None:
        """Run one step of the user's optimizer on some tensors."""
        if not slots:
            return
        parameters = [self._parameters[slot] for slot in slots]
        kept = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, self._hand.some(slots), strict=True):
            parameter.grad = gradient
        try:
            self._step_on(parameters)
        finally:
            for parameter, own in zip(parameters, kept, strict=True):
                parameter.grad = own

    def _step_on(self, parameters: Sequence[Tensor]) -> None:
        """Step the optimizer with only these parameters, and the group settings that were set at step()."""
        import torch

        due = {id(parameter): parameter for parameter in parameters}
        shown = [{**values, "params": [due[key] for key in due if key in members]} for values, members in self._groups]
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = [group for group in shown if group["params"]]
        kind = parameters[0].device.type
        try:
            with torch.inference_mode(False), torch.autocast(kind, enabled=False):
                self.context.step()
        finally:
            self._optimizer.param_groups = whole

    def discard(self) -> None:
        self.finish()
        super().discard()

    def take_spent(self) -> Spent:
        """Return the time spent on waiting and updating since the last call."""
        spent, self._spent = self._spent, Spent()
        return spent

    def update_with(self, closure: Callable[[], Any], fresh: bool) -> Any:
        raise _not_by_tensor(self._optimizer, "a closure needs all parameters at once")

    def close(self) -> None:
        if not self.under_way:  # other ranks may never finish a step that was abandoned
            self.finish()
        self._gates.close()
        self._withholding.close()
        super().close()


def _refused(what: str) -> WorkloadError:
    return WorkloadError(
        f"{what} with a schedule that crosses the step",
        why="the mean gradient is not there before the next forward",
        remedy="pace.step(), with clip_norm= or loss_scale= in wrap as you need; pace.synchronize() before it; or "
        "--schedule fusion",
    )


def _ungated(name: str) -> WorkloadError:
    return WorkloadError(
        f"forward used {name} before its update had arrived",
        why="the schedule updates tensors while the next forward runs, and torch.compile or a call that is not of a "
        "module went around the hooks that wait for them",
        remedy="pace.finish() before forward, a model that is not compiled, or --schedule fusion",
    )


def _copied(value: Any) -> Any:
    """Copy a setting: a learning rate may be a tensor that a scheduler changes in place."""
    return value.clone() if hasattr(value, "clone") else value


def _check(optimizer: Any) -> None:
    if type(optimizer).__name__ == "LBFGS":
        raise _not_by_tensor(optimizer, "it moves all parameters together")


def _not_by_tensor(optimizer: Any, why: str) -> WrongCommand:
    return WrongCommand(
        f"{type(optimizer).__name__} with a schedule that crosses the step",
        why=f"tensors are updated one by one, and {why}",
        remedy="--schedule fusion, or another optimizer",
    )

"""The mean gradient, applied tensor by tensor while the next forward runs.

    step()          what has not left yet may leave in its own time; learning rates are those of now
    forward         before a layer runs: wait for its parameters' gradients, update exactly these tensors
    next backward   before its first gradient: whatever no layer asked for

The user's own optimizer does every update: it is shown parameter groups with the tensors that are due, so that
per-tensor state such as momentum and step counts advances once per step, as in one call for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError, WrongCommand
from paceline.strategy.rules._context import Context
from paceline.strategy.rules.grad import GradDuty
from paceline.types import Spent

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.strategy.rules._lane import CrossingLaneEngine, LaneArena


class CrossingDuty(GradDuty):
    """Until the plan is made it does as rule grad does everywhere else."""

    engine: CrossingLaneEngine

    def __init__(self, context: Context) -> None:
        _check(context.optimizer)
        super().__init__(context)
        assert context.open_gates is not None, "a schedule that crosses needs gates"
        self._gates = context.open_gates(self.arrive)
        self._pending: dict[int, None] = {}  # slots that are not updated yet, in the order of need
        self._open = False
        self._spent = Spent()

    def begin(self) -> None:
        """The last step may still be under way: this one opens with its first gradient."""
        self._take_back()
        self._open = False
        if not self.engine.crossing:
            self._open_step()

    def take_spent(self) -> Spent:
        """What waiting and updating took since the last time that somebody asked."""
        spent, self._spent = self._spent, Spent()
        return spent

    def _open_step(self) -> None:
        began = perf_counter()
        self.finish()
        self._spent.in_backward += perf_counter() - began
        super().begin()
        self._open = True

    def on_grad(self, parameter: Tensor) -> None:
        if not self._open:
            self._open_step()
        super().on_grad(parameter)

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
        super().synchronize()

    def update(self) -> None:
        if self.engine.crossing and not self._given:
            self._postpone()
            return
        groups = self._values_of_groups()
        super().update()
        if self._values_of_groups() != groups:
            raise _not_by_tensor(self._optimizer, "it changes values of a parameter group in its step")

    def _postpone(self) -> None:
        """Remember learning rates and the like; tensors are updated when forward comes to them."""
        self._gates.learned()
        self._groups = [
            ({key: _copied(value) for key, value in values.items()}, {id(parameter) for parameter in parameters})
            for values, parameters in self._split_groups()
        ]
        self._pending = dict.fromkeys(range(len(self._parameters)))
        self._counts: dict[LaneArena, list[float]] = {}  # of those whose flags are back
        self.steps += 1

    def _split_groups(self) -> list[tuple[dict[str, Any], list[Tensor]]]:
        groups = self._optimizer.param_groups
        return [({k: v for k, v in group.items() if k != "params"}, group["params"]) for group in groups]

    def _values_of_groups(self) -> list[dict[str, str]]:
        return [{key: repr(value) for key, value in values.items()} for values, _ in self._split_groups()]

    # while the next step runs --------------------------------------------------------------------

    def arrive(self, positions: Sequence[int]) -> None:
        """Forward has come to a layer that uses these parameters."""
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
        """Everything of the last step is applied, and nothing is under way; parameters may be looked at."""
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
        """How many ranks had a gradient; whoever waited for a slot has waited for the flags of its arena."""
        arena, index = self.engine.place(slot)
        if arena not in self._counts:
            self._counts[arena] = arena.counts()
        return self._counts[arena][index]

    def _update(self, slots: Sequence[int]) -> None:
        """One step of the user's optimizer on some tensors."""
        if not slots:
            return
        views = [view for arena in self.engine.arenas for view in arena.result_views]
        shared = any(arena.shared for arena in self.engine.arenas)
        private = shared and (self.context.private_gradients or self._may_share is False)
        parameters = [self._parameters[slot] for slot in slots]
        # An alias with a version of its own tells whether the optimizer wrote into memory that others read.
        gradients = [views[slot].clone() if private else views[slot].data for slot in slots]
        kept = [parameter.grad for parameter in parameters]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        try:
            self._step_on(parameters)
        finally:
            for parameter, own in zip(parameters, kept, strict=True):
                parameter.grad = own
        if shared and not private and any(gradient._version for gradient in gradients):
            raise PacelineError(
                f"{type(self._optimizer).__name__} wrote into gradients, which it had not done in its first step",
                why="the ranks of a host share the memory of the mean gradient",
                remedy="wrap(..., private_gradients=True)",
            )

    def _step_on(self, parameters: Sequence[Tensor]) -> None:
        """The optimizer sees only these parameters, with the values that their groups had at step()."""
        import torch

        due = {id(parameter): parameter for parameter in parameters}
        shown = [{**values, "params": [due[key] for key in due if key in members]} for values, members in self._groups]
        whole = self._optimizer.param_groups
        self._optimizer.param_groups = [group for group in shown if group["params"]]
        kind = parameters[0].device.type
        try:
            with torch.inference_mode(False), torch.autocast(kind, enabled=False):
                self._optimizer.step()
        finally:
            self._optimizer.param_groups = whole

    def discard(self) -> None:
        self.finish()
        super().discard()

    def update_with(self, closure: Callable[[], Tensor]) -> None:
        raise _not_by_tensor(self._optimizer, "a closure needs all parameters at once")

    def close(self) -> None:
        if not self.under_way:  # others may never come to the end of a step that is given up
            self.finish()
        self._gates.close()


def _copied(value: Any) -> Any:
    """A learning rate may be a tensor, which a scheduler fills in place."""
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

"""Push-DIGing: gradient tracking on directed and irregular graphs, where rows and columns cannot both sum to one.

    y[k]   = A y[k-1] + grad(x[k]) - grad(x[k-1])       y[0] = grad(x[0]); columns of A sum to one
    u[k+1] = A (u[k] - lr * y[k])                       p[k+1] = A p[k];   p starts at 1
    parameters x = u / p

The optimizer makes its step on the gradient y / p, which is near the mean gradient; the mass p weighs the result:
p (x - lr y / p) = u - lr y. Unlike push_sum it reaches the exact optimum with a constant learning rate.

A. Nedic, A. Olshevsky and W. Shi, "Achieving Geometric Convergence for Distributed Optimization over
Time-Varying Graphs", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.strategy.rules._context import Context
from paceline.strategy.rules.push_sum import PushSumDuty
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor

MASS = Lane("parameters with mass", needs_consensus=False, lossy_ok=False, tail="mass", half="float32")
TRACKERS = Lane("trackers with mass", needs_consensus=False, lossy_ok=False, tail="mass", half="float32")


@dataclass(frozen=True)
class PushDiging(RuleTraits):
    name: ClassVar[str] = "push_diging"
    lanes: ClassVar[tuple[Lane, ...]] = (MASS, TRACKERS)
    leaves: ClassVar[str] = "update"
    needs: ClassVar[str] = "neighbors"

    def bind(self, context: Context) -> PushDigingDuty:
        return PushDigingDuty(context)


class PushDigingDuty(PushSumDuty):
    """The duty. `y` are the trackers, `last` the gradients of the step before."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, MASS)
        self._trackers = self.carry(TRACKERS)
        self.y: list[Tensor] = []
        self._last: list[Tensor] = []

    def begin(self) -> None:
        if self.y:
            for arena in self._trackers.engine.arenas:
                arena.tail.fill_(1.0)
            self._trackers.send(self.steps, self.y)

    def leave(self) -> None:
        self._trackers.wait()
        fresh = [self._gradient(parameter) for parameter in self.parameters]
        if self.y:
            mixed = self._trackers.take()
            self.y = [w + new - old for w, new, old in zip(mixed, fresh, self._last, strict=True)]
        else:
            self.y = [gradient.clone() for gradient in fresh]
        self._last = fresh
        masses = self._mass_of_each()
        for parameter, tracker, mass in zip(self.parameters, self.y, masses, strict=True):
            parameter.grad = (tracker / mass).to(parameter.dtype) if parameter.requires_grad else None
        if self.context.clip_norm is not None:
            self._torch.nn.utils.clip_grad_norm_(self.parameters, self.context.clip_norm)
        self.context.step()
        self.release()
        self.send_mass([self._lane.widened(value) * mass for value, mass in zip(self.values(), masses, strict=True)])

    def _gradient(self, parameter: Any) -> Tensor:
        if parameter.grad is None:
            return self._trackers.widened(self._torch.zeros_like(parameter))
        return self._trackers.widened(parameter.grad.detach()) * self.context.local_factor()

    def state(self) -> Mapping[str, Any]:
        return {**super().state(), "y": list(self.y), "last": list(self._last)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.y, self._last = [], []
        if self.restore_masses(state):
            self.y, self._last = list(state["y"]), list(state["last"])

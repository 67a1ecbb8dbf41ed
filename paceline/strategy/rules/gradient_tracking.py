"""Gradient tracking: every rank follows the mean gradient of all; also on doubly stochastic directed graphs.

    q[k]   = W q[k-1] + grad(x[k]) - grad(x[k-1])        q[0] = grad(x[0])
    x[k+1] = W (x[k] - lr * q[k])                        (one step of the optimizer on the gradient q)

The sum of q over ranks equals the sum of gradients at every step. Trackers leave when a step begins and hide
behind it; parameters leave after the update. Averaging after the update, instead of beside it (x <- W x - lr q), allows
learning rates that are several times larger before it diverges.

A. Nedic, A. Olshevsky and W. Shi, "Achieving Geometric Convergence for Distributed Optimization over
Time-Varying Graphs", 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.strategy.rules._averaging import PARAMETERS
from paceline.strategy.rules._context import Context
from paceline.strategy.rules._local_updates import LocalDuty
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor

TRACKERS = Lane("trackers", needs_consensus=False, lossy_ok=False, half="float32")


@dataclass(frozen=True)
class GradientTracking(RuleTraits):
    name: ClassVar[str] = "gradient_tracking"
    lanes: ClassVar[tuple[Lane, ...]] = (PARAMETERS, TRACKERS)
    leaves: ClassVar[str] = "update"
    needs: ClassVar[str] = "doubly stochastic"

    def bind(self, context: Context) -> GradientTrackingDuty:
        return GradientTrackingDuty(context)


class GradientTrackingDuty(LocalDuty):
    """The duty. `q` are the trackers, `last` the gradients of the step before."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._x, self._trackers = self.carry(PARAMETERS), self.carry(TRACKERS)
        self.q: list[Tensor] = []
        self._last: list[Tensor] = []

    def begin(self) -> None:
        if self.q:
            self._trackers.send(self.steps, self.q)

    def leave(self) -> None:
        self._trackers.wait()
        fresh = [self._gradient(parameter) for parameter in self.parameters]
        if self.q:
            mixed = self._trackers.take()
            self.q = [w + new - old for w, new, old in zip(mixed, fresh, self._last, strict=True)]
        else:
            self.q = [gradient.clone() for gradient in fresh]
        self._last = fresh
        for parameter, tracker in zip(self.parameters, self.q, strict=True):
            frozen = not parameter.requires_grad  # the tracker only follows the gradient
            parameter.grad = None if frozen else tracker.to(parameter.dtype, copy=True)
        if self.context.clip_norm is not None:
            self._torch.nn.utils.clip_grad_norm_(self.parameters, self.context.clip_norm)
        self.context.step()
        self.release()
        self._x.send(self.steps, self.values())

    def wait(self) -> None:
        self._x.wait()

    def update(self) -> None:
        self.adopt(self._x.take())
        self.steps += 1

    def _gradient(self, parameter: Any) -> Tensor:
        if parameter.grad is None:
            return self._trackers.widened(self._torch.zeros_like(parameter))
        return self._trackers.widened(parameter.grad.detach()) * self.context.local_factor()

    def state(self) -> Mapping[str, Any]:
        return {**self.own_state(), "q": list(self.q), "last": list(self._last)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps, self.q, self._last = state["steps"], [], []
        if self.all_own(state):
            self.q, self._last = list(state["q"]), list(state["last"])

"""Exact diffusion: adapt, correct, combine; no bias on heterogeneous data.

    psi[k+1] = x[k] - lr * grad(x[k])           adapt (one step of the optimizer)
    phi[k+1] = psi[k+1] + x[k] - psi[k]         correct, psi[0] = x[0]
    x[k+1]   = (I + W)/2 phi[k+1]               combine; W must be symmetric

The state between steps is x[k] - psi[k]. Its sum over ranks is zero, so the limit has no bias. It starts at zero for
any parameters, so parameters may be loaded or changed between steps.

K. Yuan, B. Ying, X. Zhao and A. H. Sayed, "Exact Diffusion for Distributed Optimization and Learning", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.strategy.rules._context import Context
from paceline.strategy.rules._local_updates import LocalDuty
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor

CORRECTED = Lane("corrected parameters", needs_consensus=False, lossy_ok=False, half="float32")


@dataclass(frozen=True)
class ExactDiffusion(RuleTraits):
    name: ClassVar[str] = "exact_diffusion"
    lanes: ClassVar[tuple[Lane, ...]] = (CORRECTED,)
    leaves: ClassVar[str] = "update"
    needs: ClassVar[str] = "symmetric"

    def bind(self, context: Context) -> ExactDiffusionDuty:
        return ExactDiffusionDuty(context)


class ExactDiffusionDuty(LocalDuty):
    """The duty. `correction` is x - psi, the change that combining made to the last adaptation; empty means zero."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lane = self.carry(CORRECTED)
        self.correction: list[Tensor] = []

    def leave(self) -> None:
        self.local_update()
        self._psi = self._phi = [self._lane.widened(value) for value in self.values()]
        if self.correction:
            self._phi = [psi + correction for psi, correction in zip(self._psi, self.correction, strict=True)]
        self._lane.send(self.steps, self._phi)

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        mixed = self._lane.take()
        combined = [(own + neighbor) / 2 for own, neighbor in zip(self._phi, mixed, strict=True)]
        self.correction = [x - psi for x, psi in zip(combined, self._psi, strict=True)]
        self.adopt(combined)
        self.steps += 1

    def state(self) -> Mapping[str, Any]:
        return {**self.own_state(), "correction": list(self.correction)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        self.correction = list(state["correction"]) if self.all_own(state) else []

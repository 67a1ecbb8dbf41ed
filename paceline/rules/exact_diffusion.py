"""Exact diffusion: adapt, correct, combine; no bias on heterogeneous data.

    psi[k+1] = x[k] - lr * grad(x[k])           adapt (one step of the optimizer)
    phi[k+1] = psi[k+1] + x[k] - psi[k]         correct, psi[0] = x[0]
    x[k+1]   = (I + W)/2 phi[k+1]               combine; W must be symmetric

K. Yuan, B. Ying, X. Zhao and A. H. Sayed, "Exact Diffusion for Distributed Optimization and Learning", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.menu import Member
from paceline.rules.context import Context
from paceline.rules.local import LocalDuty
from paceline.types import Lane

CORRECTED = Lane("corrected parameters", needs_consensus=False, lossy_ok=False)


@dataclass(frozen=True)
class ExactDiffusion(Member):
    name: ClassVar[str] = "exact_diffusion"
    lanes: ClassVar[tuple[Lane, ...]] = (CORRECTED,)
    leaves: ClassVar[str] = "update"
    due: ClassVar[str] = "update"
    same_result: ClassVar[bool] = False
    needs: ClassVar[str] = "symmetric"

    def bind(self, context: Context) -> ExactDiffusionDuty:
        return ExactDiffusionDuty(context)


class ExactDiffusionDuty(LocalDuty):
    """`psi` is what the last adaptation gave."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lane = self.carry(CORRECTED)
        self._psi = [value.clone() for value in self.values()]

    def leave(self) -> None:
        before = [value.clone() for value in self.values()]
        self.local_update()
        after = [value.clone() for value in self.values()]
        self._phi = [new + x - old for new, x, old in zip(after, before, self._psi, strict=True)]
        self._psi = after
        self._lane.send(self.steps, self._phi)

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        mixed = self._lane.take()
        self.adopt([(own + other) / 2 for own, other in zip(self._phi, mixed, strict=True)])
        self.steps += 1

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "psi": [value.clone() for value in self._psi]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps, self._psi = state["steps"], [value.clone() for value in state["psi"]]

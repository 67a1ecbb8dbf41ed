"""Push-sum: averaging on directed and irregular graphs, where rows and columns cannot both sum to one.

    x[i] <- sum_j A[i, j] (x[j] + update[j])        columns of A sum to one: mass is split, never made
    p[i] <- sum_j A[i, j] p[j]                      p starts at 1 and measures how much mass arrived
    parameters = x / p

M. Assran, N. Loizou, N. Ballas and M. Rabbat, "Stochastic Gradient Push for Distributed Deep Learning", 2019.
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

MASS = Lane("parameters with mass", needs_consensus=False, lossy_ok=False, tail="mass", stale_ok=True, half="float32")


@dataclass(frozen=True)
class PushSum(RuleTraits):
    name: ClassVar[str] = "push_sum"
    lanes: ClassVar[tuple[Lane, ...]] = (MASS,)
    leaves: ClassVar[str] = "update"
    needs: ClassVar[str] = "neighbors"

    def bind(self, context: Context) -> PushSumDuty:
        return PushSumDuty(context)


class PushSumDuty(LocalDuty):
    """The duty. `x` is the mass of the parameters, `masses` the mass p of each arena; the model holds x / p.

    Only masses are saved: x is computed from the model, so parameters may be loaded or changed between steps. Arenas
    (one per dtype) travel separately; over windows they may do so at different speeds.
    """

    def __init__(self, context: Context, lane: Lane = MASS) -> None:
        super().__init__(context)
        self._lane = self.carry(lane)
        self.masses = [1.0] * len(self._lane.engine.arenas)

    @property
    def p(self) -> float:
        return self.masses[0]

    @property
    def x(self) -> list[Tensor]:
        return [value * mass for value, mass in zip(self.values(), self._mass_of_each(), strict=True)]

    def _mass_of_each(self) -> list[float]:
        """Return the mass p of each parameter's arena, in the order of the parameters."""
        by_dtype = {arena.dtype: mass for arena, mass in zip(self._lane.engine.arenas, self.masses, strict=True)}
        return [by_dtype[self._lane.engine.carried(parameter)] for parameter in self.parameters]

    def leave(self) -> None:
        before = [self._lane.widened(value) for value in self.values()]
        self.local_update()
        changes = [new - old for new, old in zip(self.values(), before, strict=True)]
        for change, old, mass in zip(changes, before, self._mass_of_each(), strict=True):
            change.add_(old, alpha=mass)
        self.send_mass(changes)

    def send_mass(self, x: list[Tensor]) -> None:
        """Send the masses of the parameters, with the mass p beside them."""
        for arena, mass in zip(self._lane.engine.arenas, self.masses, strict=True):
            arena.tail.fill_(mass)
        self._lane.send(self.steps, x)

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        mixed = self._lane.take()
        self.masses = [float(arena.result[-1]) for arena in self._lane.engine.arenas]
        self.adopt([x / mass for x, mass in zip(mixed, self._mass_of_each(), strict=True)])
        self.steps += 1

    def state(self) -> Mapping[str, Any]:
        return {**self.own_state(), "masses": list(self.masses)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.restore_masses(state)

    def restore_masses(self, state: Mapping[str, Any]) -> bool:
        """Load the masses of a state that all ranks saved themselves; return whether it is such a state.

        If masses are reset, everything unread in buffers is discarded, too.
        """
        self.steps = state["steps"]
        own = self.all_own(state)
        if own:
            self.masses = list(state["masses"])
        else:
            self.masses = [1.0] * len(self.masses)
            self._lane.engine.channel.restore({})
        return own

"""The first steps of a schedule that measures: learn the order, watch a few steps, measure the link, plan.

step   0        1 2 3             4 ...
       order    layer times       plan in force
                         link
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from paceline.bench.profile import StepProfile
from paceline.engine.engine import Engine
from paceline.protocols import Comm
from paceline.train.watch import Watch

WATCHED = 3  # steps


class Planning:
    """Told after every step, before the next begins; on all ranks alike."""

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        parameters: Sequence[Tensor],
        *,
        comm: Comm,
        clock: Callable[[], float],
        given: StepProfile | None = None,
    ) -> None:
        self._model, self._engine, self._parameters = model, engine, parameters
        self._comm, self._clock, self._given = comm, clock, given
        self._count = 0
        self.link_measured = False

    def stepped(self) -> bool:
        """True once the plan is made."""
        self._count += 1
        if self._count == 1:
            return self._begin()
        self._watch.stepped()
        if self._count <= WATCHED:
            return False
        self._adopt(self._watch.profile())
        return True

    def _begin(self) -> bool:
        """The arena has its order now."""
        if self._given is not None:
            self._adopt(self._given)
            return True
        self._watch = Watch(self._model, self._engine, self._parameters, self._clock)
        return False

    def _adopt(self, profile: StepProfile) -> None:
        link = None if self._given is None else self._given.measured_link()
        self.link_measured = link is None
        self._engine.adopt_plan(agreed(profile, self._comm), link or self._engine.measure_link())


def agreed(profile: StepProfile, comm: Comm) -> StepProfile:
    """Rank 0's times; the layout is the same everywhere."""
    count = len(profile.layout)
    totals = [profile.forward_seconds, profile.backward, profile.step]
    numbers = torch.tensor([*profile.forward, *profile.ready, *totals], dtype=torch.float64)
    comm.broadcast(numbers, 0, "the profile").wait()
    values = numbers.tolist()
    return profile.model_copy(
        update={
            "forward": tuple(values[:count]),
            "ready": tuple(values[count : 2 * count]),
            **dict(zip(("forward_seconds", "backward", "step"), values[2 * count :], strict=True)),
        }
    )

"""The first steps of a schedule that measures: learn the order, watch a few steps, measure the link, plan.

step   0        1 2 3             4 ...
       order    layer times       plan in force, or a few steps for each candidate of schedule auto
                         link
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from paceline.bench.profile import StepProfile
from paceline.engine.engine import Engine
from paceline.schedules.auto import choose
from paceline.train.watch import Watch
from paceline.transport import Comm

WATCHED = 3  # steps
TRIAL = 4  # steps of each candidate; the first, which still has to find its feet, does not count


class Planning:
    """Told after every step, before the next begins; on all ranks alike. `settle` ends what is under way."""

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        parameters: Sequence[Tensor],
        *,
        comm: Comm,
        clock: Callable[[], float],
        settle: Callable[[], None],
        given: StepProfile | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._model, self._engine, self._parameters = model, engine, parameters
        self._comm, self._clock, self._settle, self._given, self._tell = comm, clock, settle, given, tell
        self._count = 0
        self._trials: Trials | None = None

    @property
    def left(self) -> int:
        """Steps until the plan is final, as far as one can say."""
        if self._trials is not None:
            return self._trials.left
        return 1 if self._given is not None else WATCHED + 1 - self._count

    def stepped(self) -> bool:
        """True once the plan is final."""
        self._count += 1
        if self._trials is not None:
            return self._tried(self._trials)
        if self._count == 1 and self._given is None:
            self._watch = Watch(self._model, self._engine, self._parameters, self._clock)
            return False
        if self._given is not None:
            return self._adopt(self._given)
        self._watch.stepped()
        return self._count > WATCHED and self._adopt(self._watch.profile())

    def _adopt(self, profile: StepProfile) -> bool:
        """The times are known: plan, and try candidates where there are any."""
        link = None if self._given is None else self._given.measured_link()
        self._engine.adopt_plan(agreed(profile, self._comm), link or self._engine.measure_link())
        if not hasattr(self._engine.schedule, "candidates"):
            return True
        self._trials = Trials(self._engine.schedule, self._clock)
        self._take(self._trials.current)
        return False

    def _tried(self, trials: Trials) -> bool:
        if trials.stepped():
            self._take(trials.current)
        if trials.left:
            return False
        self._settle()  # ranks may be at different units of the last step
        seconds = torch.tensor(trials.seconds(), dtype=torch.float64)
        self._comm.broadcast(seconds, 0, "the trials").wait()
        best = choose(seconds.tolist())
        self._take(trials.schedules[best])
        self._engine.tuning = {
            "chosen": str(trials.schedules[best]),
            "seconds": dict(zip(map(str, trials.schedules), seconds.tolist(), strict=True)),
        }
        if self._comm.rank == 0:
            self._tell(f"schedule {trials.asked} chose {trials.schedules[best]} of:")
            for name, value in self._engine.tuning["seconds"].items():
                self._tell(f"  {value * 1e3:9.1f} ms per step  {name}")
        return True

    def _take(self, schedule: Any) -> None:
        assert self._engine.profile is not None
        self._settle()
        self._engine.adopt_plan(self._engine.profile, self._engine.link, schedule)


class Trials:
    """A few steps for each candidate of a schedule."""

    def __init__(self, asked: Any, clock: Callable[[], float]) -> None:
        self.asked, self.schedules = asked, asked.candidates()
        self._clock, self._last = clock, clock()
        self._steps: list[list[float]] = [[]]

    @property
    def current(self) -> Any:
        return self.schedules[min(len(self._steps), len(self.schedules)) - 1]

    @property
    def left(self) -> int:
        return TRIAL * (len(self.schedules) - len(self._steps) + 1) - len(self._steps[-1])

    def stepped(self) -> bool:
        """True if the next candidate is to be taken."""
        now = self._clock()
        self._steps[-1].append(now - self._last)
        self._last = now
        if len(self._steps[-1]) < TRIAL or len(self._steps) == len(self.schedules):
            return False
        self._steps.append([])
        return True

    def seconds(self) -> list[float]:
        return [median(steps[1:]) for steps in self._steps]


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

"""The first steps of a schedule that measures: learn the order of gradients, time layers and the link, then plan.

step   0        1 2 3             4 ...
       order    layer times       plan in force, or a few steps for each candidate of schedule auto
                         link
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor, nn

from paceline.comm.transport import Comm
from paceline.engine.engine import Engine
from paceline.protocols import Schedule
from paceline.strategy.schedules.auto import choose
from paceline.train.watch import Watch
from paceline.workload.profile import StepProfile

WATCHED = 3  # steps
TRIAL = 4  # steps per candidate; the first is warm-up and does not count


class Planning:
    """Makes measurements until the plan is final. Call `stepped` after every step, on all ranks.

    `settle` finishes open exchanges. `candidates` are the schedules to try, if the schedule is auto.
    """

    def __init__(
        self,
        model: nn.Module,
        engine: Engine,
        parameters: Sequence[Tensor],
        *,
        clock: Callable[[], float],
        settle: Callable[[], None],
        candidates: Sequence[Schedule] = (),
        profile: StepProfile | None = None,
        tell: Callable[[str], None] = print,
    ) -> None:
        self._model, self._engine, self._parameters = model, engine, parameters
        self._clock, self._settle, self._known, self._tell = clock, settle, profile, tell
        self._candidates, self._count = candidates, 0
        self._trials: Trials | None = None

    @property
    def left(self) -> int:
        """Return an estimate of the steps until the plan is final."""
        if self._trials is not None:
            return self._trials.left
        return 1 if self._known is not None else WATCHED + 1 - self._count

    def stepped(self) -> bool:
        """Record the end of a step. Return True once the plan is final."""
        self._count += 1
        if self._trials is not None:
            return self._tried(self._trials)
        if self._count == 1 and self._known is None:
            self._watch = Watch(self._model, self._engine, self._parameters, self._clock)
            return False
        if self._known is not None:
            return self._adopt(self._known)
        self._watch.stepped()
        return self._count > WATCHED and self._adopt(self._watch.profile())

    def _adopt(self, profile: StepProfile) -> bool:
        """Make a plan with these times. Return False if the schedule has candidates to try first."""
        link = None if self._known is None else self._known.measured_link()
        self._engine.adopt_plan(agreed(profile, self._engine.comm), link or self._engine.measure_link())
        if not self._candidates:
            return True
        self._trials = Trials(self._engine.schedule, self._candidates, self._clock)
        self._take(self._trials.current)
        return False

    def _tried(self, trials: Trials) -> bool:
        if trials.stepped():
            self._take(trials.current)
        if trials.left:
            return False
        self._settle()  # ranks may have reached different units of the last step
        seconds = torch.tensor(trials.seconds(), dtype=torch.float64)
        self._engine.comm.broadcast(seconds, 0, "the trials").wait()
        best = choose(seconds.tolist())
        self._take(trials.schedules[best])
        self._engine.tuning = {
            "chosen": str(trials.schedules[best]),
            "seconds": dict(zip(map(str, trials.schedules), seconds.tolist(), strict=True)),
        }
        if self._engine.comm.rank == 0:
            self._tell(f"schedule {trials.schedule} chose {trials.schedules[best]} of:")
            for name, value in self._engine.tuning["seconds"].items():
                self._tell(f"  {value * 1e3:9.1f} ms per step  {name}")
        return True

    def _take(self, schedule: Schedule) -> None:
        assert self._engine.profile is not None
        self._settle()
        self._engine.adopt_plan(self._engine.profile, self._engine.link, schedule)


class Trials:
    """Times a few steps with each candidate of a schedule."""

    def __init__(self, schedule: Schedule, candidates: Sequence[Schedule], clock: Callable[[], float]) -> None:
        self.schedule, self.schedules = schedule, candidates
        self._clock, self._last = clock, clock()
        self._steps: list[list[float]] = [[]]

    @property
    def current(self) -> Schedule:
        return self.schedules[min(len(self._steps), len(self.schedules)) - 1]

    @property
    def left(self) -> int:
        return TRIAL * (len(self.schedules) - len(self._steps) + 1) - len(self._steps[-1])

    def stepped(self) -> bool:
        """Record the end of a step. Return True if the next candidate is due."""
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
    """Return the profile with the times of rank 0. The layout is the same on all ranks. Collective."""
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

"""How the units of a schedule travel: the one place that decides whether they cross the step. Pure, no torch.

way          engine           duty of rule grad   who decides what leaves next
in the step  Engine           GradDuty            Dispatcher: the plan
crossing     CrossingEngine   CrossingDuty        Leader on rank 0, Follower on the others
decoupled    CrossingEngine   CrossingDuty        Decoupled: the plan, then the order of need
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.dispatch import Decoupled, Dispatcher, Follower, Leader
from paceline.engine.step_plan import StepPlan
from paceline.protocols import Schedule


@dataclass(frozen=True)
class Way:
    """
    crosses   units may come back as late as the next forward needs them: it waits at gates
    phases    phases of every chunk; with two, forward lies between them
    credit    bytes that may be under way at once, where rank 0 leads
    """

    crosses: bool
    phases: int
    credit: int

    @property
    def led(self) -> bool:
        """Whether rank 0 picks the order; second phases follow in one order of need, so that nobody has to lead."""
        return self.crosses and self.phases == 1

    def dispatcher(self, plan: StepPlan, urgency: Sequence[int] = (), *, leads: bool = True) -> Dispatcher:
        """The dispatcher of a plan; `leads` is whether this rank picks the order of all."""
        if not self.crosses:
            return Dispatcher(plan.needs, phases=self.phases)
        if not self.led:
            return Decoupled(plan.needs, urgency=urgency)
        if not leads:
            return Follower(plan.needs)
        return Leader(plan.needs, urgency=urgency, nbytes=plan.nbytes, credit=self.credit)


def way_of(schedule: Schedule) -> Way:
    return Way(schedule.crosses_step, 2 if schedule.decouples else 1, schedule.credit_bytes)

"""The way of a schedule: whether its exchange crosses the step, and who orders the units. Pure, without torch.

way          engine           duty of rule grad   who decides what leaves next
in the step  Engine           GradDuty            Dispatcher: the plan
crossing     CrossingEngine   CrossingDuty        Leader on rank 0, Follower on the others
decoupled    CrossingEngine   CrossingDuty        Decoupled: the plan, then the order of need

An engine may change between the last two, because schedule auto tries both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.dispatch import Decoupled, Dispatcher, Follower, Leader
from paceline.engine.step_plan import StepPlan
from paceline.protocols import Exchange, Schedule


@dataclass(frozen=True)
class Way:
    """How the units of a schedule travel.

    crosses   the exchange may continue during the next forward, which waits at gates for its parameters
    phases    phases of every chunk; with two, forward may run between them
    credit    bytes that may be under way at once, if rank 0 leads
    """

    crosses: bool
    phases: int
    credit: int

    @property
    def led(self) -> bool:
        """Return whether rank 0 picks the order of units. With two phases, the plan fixes the order on all ranks."""
        return self.crosses and self.phases == 1

    def dispatcher(self, plan: StepPlan, urgency: Sequence[int] = (), *, leads: bool = True) -> Dispatcher:
        """Return the dispatcher for a plan. With `leads`, this rank picks the order for all ranks."""
        if not self.crosses:
            return Dispatcher(plan.needs, phases=self.phases)
        if not self.led:
            return Decoupled(plan.needs, urgency=urgency)
        if not leads:
            return Follower(plan.needs)
        return Leader(plan.needs, urgency=urgency, nbytes=plan.nbytes, credit=self.credit)


def phased(exchange: Exchange, schedule: Schedule) -> Exchange:
    """Return the exchange in as many phases as a schedule needs."""
    halves = exchange.decoupled() if schedule.decouples else None
    return exchange if halves is None else halves


def way_of(schedule: Schedule) -> Way:
    return Way(schedule.crosses_step, 2 if schedule.decouples else 1, schedule.credit_bytes)

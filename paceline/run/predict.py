"""What a schedule would cost: the dispatcher itself, fed with a profile's times and a link that serves one at a time.

    backward  |-- ready -- ready --|  forward of the next step: layers wait for what they need
    link         [unit][unit]  [unit] ...

The link was fitted to dense chunks, of which a rank receives 2 (P-1)/P in an all-reduce; other rounds are charged as
the all-reduce in which a rank receives as much. Ranks are alike and updates take no time, so this is a sketch for
comparing plans, not a forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from paceline.engine.dispatch import Dispatcher
from paceline.engine.step_plan import StepPlan
from paceline.engine.way import way_of
from paceline.protocols import Schedule
from paceline.types import Profile, Unit


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step: computing, waiting for communication, and what communication takes in all."""

    compute: float
    exposed: float
    communication: float


def predict(
    schedule: Schedule,
    plan: StepPlan,
    profiles: Sequence[Profile],
    costs: Sequence[float],
    totals: tuple[float, float],
) -> Prediction:
    """`profiles` are of the arenas of the plan, `costs` the seconds of its chunks; `totals`: forward and backward."""
    forward, backward = totals
    starts = [time for profile in profiles for time in profile.forward]
    ready = [time for profile in profiles for time in profile.ready]
    way = way_of(schedule)
    phases = way.phases
    seconds = [cost / phases for cost in costs]
    urgency = plan.urgency(starts) if way.crosses else ()
    back = _run(way.dispatcher(plan, urgency), ready, seconds, phases)
    communication = sum(seconds) * phases
    if not way.crosses:
        return Prediction(forward + backward, max(0.0, max(back.values()) - backward), communication)
    end = _walk(starts, plan.covers(), back, backward) - max(starts) + forward
    return Prediction(forward + backward, max(0.0, end - backward - forward), communication)


def _run(dispatcher: Dispatcher, ready: Sequence[float], seconds: Sequence[float], phases: int) -> dict[int, float]:
    """When every chunk is back for good."""
    events: list[tuple[float, int, Any]] = [(time, 0, slot) for slot, time in enumerate(ready)]
    heapify(events)
    free, back = 0.0, dict[int, float]()

    def leave(units: Sequence[Unit], now: float) -> None:
        nonlocal free
        for unit in units:
            free = max(free, now) + seconds[unit.chunk]
            heappush(events, (free, 1, unit))

    leave(dispatcher.begin(0), 0.0)
    while events:
        now, kind, what = heappop(events)
        if kind and what.phase + 1 == phases:
            back[what.chunk] = now
        leave(dispatcher.back(what) if kind else dispatcher.ready(what), now)
    return back


def _walk(starts: Sequence[float], covers: Sequence[Sequence[int]], back: Mapping[int, float], now: float) -> float:
    """The time at which the last layer of the next forward begins."""
    last = 0.0
    for slot in sorted(range(len(starts)), key=starts.__getitem__):
        now = max([now + starts[slot] - last, *(back[chunk] for chunk in covers[slot])])
        last = starts[slot]
    return now

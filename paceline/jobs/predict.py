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

from paceline.engine.dispatch import Decoupled, Dispatcher, Leader
from paceline.types import Chunk, Layout, Link, Profile, Unit


@dataclass(frozen=True)
class Prediction:
    """Seconds of one step: computing, waiting for communication, and what communication takes in all."""

    compute: float
    exposed: float
    communication: float


def predict(
    schedule: Any, profile: Profile, link: Link, costs: Sequence[float], totals: tuple[float, float]
) -> Prediction:
    """`costs` are the seconds of every chunk; `link` is what the plan is made for; `totals`: forward and backward."""
    forward, backward = totals
    chunks = schedule.plan(profile, link.seconds).chunks()
    needs = _needs(chunks, profile.layout)
    phases = 2 if schedule.decouples else 1
    seconds = [cost / phases for cost in costs]
    dense = [chunk.numel * profile.layout.itemsize for chunk in chunks]  # a credit counts what is not coded yet
    dispatcher = _dispatcher(schedule, needs, _urgency(profile, needs), dense)
    back = _run(dispatcher, profile.ready, seconds, phases)
    communication = sum(seconds) * phases
    if not schedule.crosses_step:
        return Prediction(forward + backward, max(0.0, max(back.values()) - backward), communication)
    end = _walk(profile, needs, back, backward) - max(profile.forward) + forward
    return Prediction(forward + backward, max(0.0, end - backward - forward), communication)


def _needs(chunks: Sequence[Chunk], layout: Layout) -> list[tuple[int, ...]]:
    """As the engine has it: the chunk with the flags waits for all slots."""
    everything = tuple(range(len(layout.slots)))
    return [everything if c.stop == layout.numel and layout.tail else layout.slots_in(c.start, c.stop) for c in chunks]


def _urgency(profile: Profile, needs: Sequence[Sequence[int]]) -> list[int]:
    starts = profile.forward or tuple(reversed(range(len(profile.ready))))
    first = [min((starts[slot] for slot in slots), default=0) for slots in needs]
    ranked = sorted(range(len(needs)), key=lambda chunk: (first[chunk], -chunk))
    return [ranked.index(chunk) for chunk in range(len(needs))]


def _dispatcher(schedule: Any, needs: Any, urgency: Sequence[int], sizes: Sequence[int]) -> Dispatcher:
    if schedule.decouples:
        return Decoupled(needs, urgency=urgency)
    if schedule.crosses_step:
        return Leader(needs, urgency=urgency, nbytes=sizes, credit=schedule.credit_bytes)
    return Dispatcher(needs)


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


def _walk(profile: Profile, needs: Sequence[Sequence[int]], back: Mapping[int, float], now: float) -> float:
    """The time at which the last layer of the next forward begins."""
    covers: dict[int, list[int]] = {}
    for chunk, slots in enumerate(needs):
        for slot in slots:
            covers.setdefault(slot, []).append(chunk)
    last = 0.0
    for slot in sorted(range(len(profile.forward)), key=lambda k: profile.forward[k]):
        now = max([now + profile.forward[slot] - last, *(back[chunk] for chunk in covers.get(slot, ()))])
        last = profile.forward[slot]
    return now

"""A step on a simulated clock: the dispatchers of the engine, fed from a heap of events. Pure, no torch.

    rank of a class   forward | backward: ready ready ready | wait | update |        one generator for each class
    dispatcher        begin, ready, need, said, back  ->  units that may leave
    fabric            a unit has stages; each part of the fabric serves one stage after another, first come first served

A unit starts when every class has let it leave. Ranks of a class are alike, so a class costs as much as one rank. If
two events have the same time, compute comes first: a gradient that becomes ready just when a unit is back may leave
first.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from paceline.engine.dispatch import Dispatcher, Follower
from paceline.engine.step_plan import StepPlan
from paceline.engine.way import Way
from paceline.forecast.fabric import RankClass
from paceline.forecast.rounds import PARTS, RoundStage
from paceline.types import Event, Unit

COMPUTE, NETWORK = 0, 1  # order of events at the same time
Pause = float | frozenset[Unit]  # seconds to sleep, or units to wait for
Stages = Callable[[int, int, int, int], Sequence[RoundStage]]  # the stages of (lane, chunk, phase, step)


@dataclass(frozen=True)
class Compute:
    """The compute times of one rank, in seconds.

    `forward[s]` is when the layer of slot s starts, and `ready[s]` is when its gradient is ready, both counted from the
    start of their pass. `pack`, `encode` and `decode` are for a whole step. `aside` is True if backward continues while
    the host packs and encodes: on an accelerator, and in replayed compute.
    """

    forward: tuple[float, ...]
    forward_seconds: float
    ready: tuple[float, ...]
    backward: float
    update: float = 0.0
    pack: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    aside: bool = False

    @property
    def seconds(self) -> float:
        return self.forward_seconds + self.backward + self.update


@dataclass(frozen=True)
class Script:
    """Everything that a timeline plays: one plan per lane, when lanes leave, and what units cost.

    leaves   "backward", "begin" or "update", as the rule says
    sends    whether a step exchanges anything
    inline   whether the computing thread moves the bytes
    """

    compute: Compute
    way: Way
    plans: tuple[StepPlan, ...]
    stages: Stages
    classes: tuple[RankClass, ...] = (RankClass(1, 1.0),)
    leaves: str = "backward"
    sends: Callable[[int], bool] = lambda step: True
    inline: bool = False
    delay: float = 0.0  # extra compute time of the slowest rank that others wait for, as a fraction


@dataclass
class Played:
    """The result of a simulation: events of the first class, and the busy seconds of every part of the fabric."""

    events: list[Event] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)  # start of every backward of the first class
    waited: list[float] = field(default_factory=list)  # seconds of every step in which the first class waited
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    fixed: float = 0.0


class Timeline:
    """One job on its simulated clock."""

    def __init__(self, script: Script) -> None:
        self._script, self.now = script, 0.0
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._count = 0
        self._free = [0.0] * len(PARTS)
        self._left: dict[Unit, int] = defaultdict(int)
        self._ranks = [SimulatedRank(self, number, kind) for number, kind in enumerate(script.classes)]
        self.played = Played()

    def play(self, steps: int) -> Played:
        for rank in self._ranks:
            rank.start(steps)
        while self._heap:
            self.now, _, _, act = heappop(self._heap)
            act()
        return self.played

    def at(self, seconds: float, order: int, act: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._heap, (seconds, order, self._count, act))

    def left(self, unit: Unit, rank: SimulatedRank) -> None:
        """Register that a class lets a unit leave; the unit starts when all classes have."""
        self._left[unit] += 1
        if rank.leads:
            for follower in self._ranks[1:]:
                follower.hear(unit)
        if self._left[unit] == len(self._ranks):
            del self._left[unit]
            stages = self._script.stages(unit.vector, unit.chunk, unit.phase, unit.step)
            self._go_on(unit, iter(stages))

    def _go_on(self, unit: Unit, stages: Iterator[RoundStage]) -> None:
        stage = next(stages, None)
        if stage is None:
            self.at(self.now, NETWORK, lambda: self._back(unit))
            return
        used = [k for k, seconds in enumerate(stage.busy) if seconds > 0]
        start = max([self.now, *(self._free[k] for k in used)])
        for k in used:
            self._free[k] = start + stage.fixed + stage.busy[k]
            self.played.busy[PARTS[k]] += stage.busy[k]
        self.played.fixed += stage.fixed
        self.at(start + stage.seconds, NETWORK, lambda: self._go_on(unit, stages))

    def _back(self, unit: Unit) -> None:
        for rank in self._ranks:
            rank.back(unit)


class SimulatedRank:
    """One rank that represents its class. It is a generator that sleeps and waits as a real rank does."""

    def __init__(self, timeline: Timeline, number: int, kind: RankClass) -> None:
        self._timeline, self._number = timeline, number
        self._script = script = timeline._script
        self._pace = kind.slowness * (1 + script.delay)
        self.leads = number == 0 and script.way.led and script.leaves == "backward"
        self._crosses = script.way.crosses and script.leaves == "backward"
        self._starts = _order(script.compute.forward)
        self._stops = stops(script.compute.ready, [needs for plan in script.plans for needs in plan.needs])
        self._slots = [sum(len(layout.slots) for layout in plan.layouts) for plan in script.plans]
        self._covers = script.plans[0].covers() if self._crosses else []
        self._dispatchers = [self._dispatcher(plan) for plan in script.plans]
        self._back: set[Unit] = set()
        self._awaited: frozenset[Unit] = frozenset()
        self._announced: deque[Unit] = deque()
        self._under_way = -1  # the step whose units may be under way
        self._owed = 0.0  # seconds that sending has cost the computing thread
        self._parts = [_parts(plan) for plan in script.plans]

    def _dispatcher(self, plan: StepPlan) -> Dispatcher:
        way, script = self._script.way, self._script
        if script.leaves != "backward":
            return Dispatcher(plan.needs)
        urgency = plan.urgency(script.compute.forward) if way.crosses else ()
        return way.dispatcher(plan, urgency, leads=self._number == 0)

    # called by the timeline ----------------------------------------------------------------------

    def start(self, steps: int) -> None:
        self._life = self._steps(steps)
        self._resume()

    def _resume(self) -> None:
        pause = next(self._life, None)
        while pause is not None:
            if isinstance(pause, frozenset):
                self._awaited = pause - self._back
                if self._awaited:
                    return
            else:
                self._timeline.at(self._timeline.now + pause, COMPUTE, self._resume)
                return
            pause = next(self._life, None)

    def back(self, unit: Unit) -> None:
        self._note("back", unit.step, unit.chunk, unit.phase)
        if unit.phase + 1 == self._script.way.phases or self._script.leaves != "backward":
            self._back.add(unit)
        self._send(self._dispatchers[unit.vector].back(unit), unit.vector)
        if self._awaited and self._awaited <= self._back:
            self._awaited = frozenset()
            self._resume()

    def hear(self, unit: Unit) -> None:
        """Register that rank 0 has let a unit leave, maybe of a step that has not begun on this rank."""
        self._announced.append(unit)
        self._listen()

    def _listen(self) -> None:
        while self._announced and self._announced[0].step == self._under_way:
            unit = self._announced.popleft()
            dispatcher = self._dispatchers[unit.vector]
            assert isinstance(dispatcher, Follower)
            self._send(dispatcher.announced(unit.chunk), unit.vector)

    # the steps of a rank -----------------------------------------------------------------------------

    def _steps(self, steps: int) -> Iterator[Pause]:
        script = self._script
        for step in range(steps):
            waited = 0.0
            sends = script.sends(step)
            self._note("forward", step)
            if script.leaves == "begin" and sends:
                yield from self._offer_all(step)
            waited += yield from self._forward()
            self._mark(step)
            yield from self._backward(step, sends)
            self._note("computed", step)
            if script.leaves == "update":
                yield script.compute.update * self._pace
                if sends:
                    yield from self._offer_all(step)
            self._note("left", step)
            if sends and not self._crosses:
                waited += yield from self._wait(self._units(step))
            self._note("waited", step)
            if script.leaves != "update" and not self._crosses:
                yield script.compute.update * self._pace
            self._note("end", step)
            if self._number == 0:
                self._timeline.played.waited.append(waited)

    def _forward(self) -> Generator[Pause, None, float]:
        """Run forward, layer by layer if it stops at gates; return the seconds that it waited."""
        compute = self._script.compute
        if not (self._crosses and self._under_way >= 0):
            yield compute.forward_seconds * self._pace
            return 0.0
        waited, last, whole = 0.0, 0.0, sum(self._script.plans[0].nbytes)
        for start, slots in self._starts:
            yield (start - last) * self._pace
            last = start
            for slot in slots:
                due = self._covers[slot]
                units = frozenset(self._unit(0, chunk, self._under_way) for chunk in due) - self._back
                if units:
                    self._send(self._dispatchers[0].need(slot), 0)
                    waited += yield from self._wait(units)
                if compute.update:
                    numel = _numel(self._script.plans[0], slot)
                    yield compute.update * self._pace * numel / max(1, whole)
        yield (compute.forward_seconds - last) * self._pace
        return waited

    def _backward(self, step: int, sends: bool) -> Iterator[Pause]:
        compute, script = self._script.compute, self._script
        if script.leaves != "backward" or not sends:
            yield compute.backward * self._pace
            return
        last, began = 0.0, self._timeline.now
        pack = compute.pack / max(1, len(compute.ready))
        for number, slots in enumerate(self._stops):
            at = compute.ready[slots[-1]]
            if compute.aside:
                yield max(0.0, began + at * self._pace - self._timeline.now) + pack * len(slots)
            else:
                yield (at - last) * self._pace + pack * len(slots)
            last = at
            if not number:
                yield from self._open(step)
            for slot in slots:
                for lane, dispatcher in enumerate(self._dispatchers):
                    self._note("ready", step, slot)
                    self._send(dispatcher.ready(slot), lane)
            yield from self._pay()
        end = began + compute.backward * self._pace - self._timeline.now
        yield max(0.0, end if compute.aside else (compute.backward - last) * self._pace)

    def _open(self, step: int) -> Iterator[Pause]:
        """Wait until all units of the last step are back; only then may a gradient of this step enter the arena."""
        if self._crosses and self._under_way >= 0:
            yield from self._wait(self._units(self._under_way))
        self._begin(step)

    def _begin(self, step: int) -> None:
        self._back.clear()
        self._under_way = step
        self._note("begin", step)
        for lane, dispatcher in enumerate(self._dispatchers):
            self._send(dispatcher.begin(step), lane)
        self._listen()

    def _offer_all(self, step: int) -> Iterator[Pause]:
        self._begin(step)
        yield self._script.compute.pack
        for lane, count in enumerate(self._slots):
            for slot in range(count):
                self._note("ready", step, slot)
                self._send(self._dispatchers[lane].ready(slot), lane)
                yield from self._pay()

    def _wait(self, units: frozenset[Unit]) -> Generator[Pause, None, float]:
        began = self._timeline.now
        yield units
        waited = self._timeline.now - began
        decode = self._script.compute.decode
        if decode and units:
            yield decode * sum(self._parts[unit.vector][unit.chunk] for unit in units)
        return waited

    def _send(self, units: Sequence[Unit], lane: int) -> None:
        for unit in units:
            self._note("leave", unit.step, unit.chunk, unit.phase)
            named = unit._replace(vector=lane)
            if unit.phase == 0:
                self._owed += self._script.compute.encode * self._parts[lane][unit.chunk]
            if self._script.inline:
                stages = self._script.stages(lane, unit.chunk, unit.phase, unit.step)
                self._owed += sum(stage.seconds for stage in stages)
            self._timeline.left(named, self)

    def _pay(self) -> Iterator[Pause]:
        """Spend the time that sending costs the computing thread."""
        owed, self._owed = self._owed, 0.0
        if owed:
            yield owed

    def _units(self, step: int) -> frozenset[Unit]:
        lanes = enumerate(self._script.plans)
        return frozenset(self._unit(lane, chunk, step) for lane, plan in lanes for chunk in range(len(plan.chunks)))

    def _unit(self, lane: int, chunk: int, step: int) -> Unit:
        phases = self._script.way.phases if self._script.leaves == "backward" else 1
        return Unit(step, chunk, phases - 1, lane)

    def _mark(self, step: int) -> None:
        self._note("backward", step)
        if self._number == 0:
            self._timeline.played.begins.append(self._timeline.now)

    def _note(self, kind: str, step: int, what: int = -1, detail: float = 0) -> None:
        if self._number == 0:
            self._timeline.played.events.append(Event(self._timeline.now, kind, step, what, detail))


def stops(ready: Sequence[float], needs: Sequence[Sequence[int]]) -> list[list[int]]:
    """Group the slots in the order of backward. A group ends at slots that complete a chunk, and at the first one.

    Nothing can leave inside a group, so the clock need not stop there. With few chunks this saves most of the time of
    a simulation.
    """
    order = sorted(range(len(ready)), key=lambda slot: (ready[slot], slot))
    place = {slot: k for k, slot in enumerate(order)}
    last = {0, len(order) - 1, *(max(place[slot] for slot in slots) for slots in needs if slots)}
    batches: list[list[int]] = [[]]
    for k, slot in enumerate(order):
        batches[-1].append(slot)
        if k in last:
            batches.append([])
    return batches[:-1]


def _parts(plan: StepPlan) -> list[float]:
    """Return the share of every chunk in the bytes of a step."""
    total = max(1, sum(plan.nbytes))
    return [nbytes / total for nbytes in plan.nbytes]


def _order(starts: Sequence[float]) -> list[tuple[float, list[int]]]:
    """Return the slots by the time at which forward reaches them."""
    by_start: dict[float, list[int]] = {}
    for slot in sorted(range(len(starts)), key=lambda slot: (starts[slot], -slot)):
        by_start.setdefault(starts[slot], []).append(slot)
    return list(by_start.items())


def _numel(plan: StepPlan, slot: int) -> float:
    for layout in plan.layouts:
        if slot < len(layout.slots):
            return layout.slots[slot].numel * layout.itemsize
        slot -= len(layout.slots)
    return 0.0

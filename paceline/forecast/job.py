"""One job of a forecast: members, a profile and a fabric become a script, the script becomes seconds.

profile (times, shapes)   fabric (machines, wires)   rule, exchange, schedule, compressor
        \\                      |                       /
         plan_step: the plan of the engine   Rounds: costs of its units   Way: its dispatcher
                                |
                            Timeline  ->  Outlook: seconds of a step, waiting, bytes, what is busy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

from paceline.engine.step_plan import StepPlan, plan_step, plan_whole, tail_of
from paceline.engine.way import Way, phased, way_of
from paceline.forecast.fabric import Fabric, RankClass
from paceline.forecast.rounds import Rounds, RoundStage
from paceline.forecast.timeline import Compute, Played, Script, Timeline
from paceline.protocols import Compressor, Costed, Rule, Schedule, Wire
from paceline.strategy.exchanges._costs import steps_of
from paceline.strategy.exchanges.allreduce import AllReduce
from paceline.strategy.schedules.auto import choose
from paceline.types import Chunk, Event, Lane, Layout, Link, Profile, Slot
from paceline.workload.profile import StepProfile

WARM = 3  # steps until a period is steady
MOST = 64  # steps of a period that are played
ROWS = 4_096  # most steps of a topology to ask for, because the cost of one grows with the number of ranks


@dataclass(frozen=True)
class Members:
    """The members of a job: rule, exchange, schedule and compressor."""

    rule: Rule
    exchange: Costed
    schedule: Schedule
    compressor: Compressor


@dataclass(frozen=True)
class CodingSeconds:
    """Seconds that a compressor takes: per dense byte that it encodes, and per payload byte that it decodes."""

    encode: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True)
class Outlook:
    """The forecast of a job: seconds and bytes of one steady step; `busy` has seconds for each part of the fabric.

    slowest   seconds of computing alone, of the rank that others wait for
    pace      steps per second of each class of ranks, with their number
    """

    workers: int
    batch: int
    step: float
    compute: float
    slowest: float
    communication: float
    latency: float
    received: float
    coding: float
    busy: dict[str, float]
    chunks: int
    pace: tuple[tuple[int, float], ...]
    events: tuple[Event, ...] = ()

    @property
    def rate(self) -> float:
        """Samples per second of all workers."""
        return self.batch * sum(count * pace for count, pace in self.pace)

    @property
    def efficiency(self) -> float:
        """The rate divided by the rate of as many single workers."""
        return self.rate * self.compute / (self.batch * self.workers)

    @property
    def exposed(self) -> float:
        """Seconds of a step beyond the compute of the slowest rank."""
        return max(0.0, self.step - self.slowest)


class Job:
    """A run to be forecast: its strategy (rule, exchange, schedule, ...), the fabric, and the step times of a model."""

    def __init__(
        self,
        members: Members,
        profile: StepProfile,
        fabric: Fabric,
        coding: CodingSeconds = CodingSeconds(),
        batch: int = 0,
    ) -> None:
        self.members, self.profile, self.fabric, self.coding = members, profile, fabric, coding
        self.batch = batch or profile.batch_size or 1
        self.way = way_of(members.schedule)
        exchange: Costed = phased(members.exchange, members.schedule)  # type: ignore[assignment]
        self._rounds = Rounds(exchange, fabric)
        self._stages: dict[tuple[int, int, int], list[RoundStage]] = {}
        self._turns = steps_of(exchange.period(fabric.cluster), max(1, ROWS // fabric.size))

    @cached_property
    def link(self) -> Link:
        """Return latency and bandwidth of an uncompressed exchange on this fabric; some schedules plan with them."""
        stages = self._wire_stages(0), self._wire_stages(1 << 26)
        first, large = (sum(stage.seconds for stage in path) for path in stages)
        return Link(first, (1 << 26) / max(large - first, 1e-12))

    def _wire_stages(self, nbytes: int) -> list[RoundStage]:
        return self._rounds.of_wire(Wire("sum", nbytes))

    @cached_property
    def plans(self) -> tuple[StepPlan, ...]:
        return tuple(self._plan(lane) for lane in self.members.rule.lanes)

    def _plan(self, lane: Lane) -> StepPlan:
        """Return the plan of one lane, as an engine makes it."""
        members, profile = self.members, self._profile(lane)
        if members.schedule.measures and not members.rule.averages_gradients:
            return plan_whole([profile.layout])
        return plan_step(members.schedule, [profile], self.link, members.compressor, self.fabric.size)

    def _profile(self, lane: Lane) -> Profile:
        slots = tuple(Slot(tensor.name, tensor.numel, tensor.shape) for tensor in self.profile.layout)
        layout = Layout(slots, self.profile.itemsize, tail_of(lane, len(slots)))
        return Profile(layout, tuple(self.profile.ready), tuple(self.profile.forward))

    def stages(self, lane: int, chunk: int, phase: int, step: int) -> Sequence[RoundStage]:
        """Return the rounds of a unit, one after another."""
        rule = self.members.rule
        turn = self._turns[step // rule.intervals[0] % len(self._turns)]
        key = (lane, chunk, turn)
        if key not in self._stages:
            plan = self.plans[lane]
            cut: Chunk = plan.chunks[chunk]
            self._stages[key] = self._rounds.of_chunk(self.members.compressor, plan.layouts[cut.arena], cut, turn)
        cached = self._stages[key]
        if self.way.phases == 2 and rule.leaves == "backward":
            half = (len(cached) + 1) // 2
            cached = cached[:half] if phase == 0 else cached[half:]
        return [*cached, *self._mean_of_all(chunk, step)]

    def _mean_of_all(self, chunk: int, step: int) -> list[RoundStage]:
        """Return the rounds of the mean over all ranks that some rules add every few steps."""
        intervals = self.members.rule.intervals
        if len(intervals) < 2 or (step + 1) % intervals[1]:
            return []
        plan = self.plans[0]
        cut = plan.chunks[chunk]
        return Rounds(AllReduce(), self.fabric).of_chunk(self.members.compressor, plan.layouts[cut.arena], cut)

    @property
    def period(self) -> int:
        return min(MOST, lcm(self.members.rule.period, len(self._turns) * self.members.rule.intervals[0]))

    def compute(self) -> Compute:
        profile = self.profile
        seconds = self._coding_seconds()
        return Compute(
            forward=profile.forward,
            forward_seconds=profile.forward_seconds,
            ready=profile.ready,
            backward=max(profile.backward, *profile.ready),
            update=profile.update,
            pack=profile.pack,
            encode=seconds[0],
            decode=seconds[1],
            aside=self.fabric.aside,
        )

    def _coding_seconds(self) -> tuple[float, float]:
        """Return the coding seconds of all chunks of a step."""
        if self.members.compressor.loss == "none" or self.fabric.size == 1:
            return 0.0, 0.0
        dense = sum(sum(plan.nbytes) for plan in self.plans)
        return self.coding.encode * dense, self.coding.decode * self._received()

    def _received(self) -> float:
        """Return the bytes into the busiest rank in a step that exchanges."""
        return sum(
            stage.received
            for lane, plan in enumerate(self.plans)
            for chunk in range(len(plan.chunks))
            for phase in range(self.way.phases if self.members.rule.leaves == "backward" else 1)
            for stage in self.stages(lane, chunk, phase, 0)
        )

    def outlook(self) -> Outlook:
        """Simulate the job until it is steady, and one more period."""
        classes = self.fabric.classes()
        rule = self.members.rule
        if rule.bound is None or self.members.exchange.asynchronous:
            alone = [self._play(replace(self.fabric, slow=0), kind.slowness) for kind in classes]
            pace = tuple((kind.count, 1 / times[0]) for kind, times in zip(classes, alone, strict=True))
            step, played, steps = alone[0]
        else:
            step, played, steps = self._play(self.fabric, None)
            pace = ((self.fabric.size, 1 / step),)
        return self._summed(step, played, steps, pace)

    def _play(self, fabric: Fabric, slowness: float | None) -> tuple[float, Played, int]:
        classes = fabric.classes() if slowness is None else (RankClass(fabric.size, slowness),)
        waits = 1 if slowness is not None else self._peers()
        rule = self.members.rule
        script = Script(
            compute=self.compute(),
            way=self.way if rule.leaves == "backward" else Way(False, 1, 0),
            plans=self.plans,
            stages=self.stages,
            classes=classes,
            leaves=rule.leaves,
            sends=lambda step: any((step + 1) % interval == 0 for interval in rule.intervals),
            inline=fabric.inline,
            delay=fabric.delay(waits),
        )
        period = self.period
        steps = WARM + period + 1
        first = WARM
        if rule.period > 1:
            steps, first = 2 * period + 1, period
        played = Timeline(script).play(steps)
        seconds = (played.begins[first + period] - played.begins[first]) / period
        return seconds, played, steps

    def _peers(self) -> int:
        """Return the number of ranks that a rank waits for in a step, itself included."""
        exchange = self.members.exchange
        if exchange.consensus:
            return self.fabric.size
        heard = exchange.traffic(1, self.fabric.cluster, 0)
        return 1 + max((sum(flow.dst == 0 for flow in flows) for flows in heard), default=0)

    def _summed(self, step: float, played: Played, steps: int, pace: tuple[tuple[int, float], ...]) -> Outlook:
        busy = {part: seconds / steps for part, seconds in played.busy.items()}
        slowest = max(kind.slowness for kind in self.fabric.classes())
        compute = self.profile.forward_seconds + max(self.profile.backward, *self.profile.ready) + self.profile.update
        sending = sum(1 for k in range(steps) if any((k + 1) % i == 0 for i in self.members.rule.intervals)) / steps
        return Outlook(
            workers=self.fabric.size,
            batch=self.batch,
            step=step,
            compute=compute,
            slowest=compute * slowest,
            communication=max(busy.values()) + played.fixed / steps,
            latency=played.fixed / steps,
            received=self._received() * sending,
            coding=sum(self._coding_seconds()) * sending,
            busy=busy,
            chunks=sum(len(plan.chunks) for plan in self.plans),
            pace=pace,
            events=tuple(played.events),
        )


def best_of(candidates: Sequence[Schedule], members: Members, profile: StepProfile, fabric: Fabric) -> Schedule:
    """Return the schedule that `auto` would keep: the first that no later one clearly beats."""
    jobs = [Job(replace(members, schedule=schedule), profile, fabric) for schedule in candidates]
    return candidates[choose([job.outlook().step for job in jobs])]

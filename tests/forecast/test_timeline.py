"""The simulated clock, on jobs small enough to count by hand."""

import random
import subprocess
import sys
from dataclasses import replace
from math import inf

import pytest

from paceline.engine.step_plan import plan_step
from paceline.engine.way import way_of
from paceline.forecast.fabric import FREE, Fabric, Line, RankClass
from paceline.forecast.job import Job, Members
from paceline.forecast.rounds import RoundStage
from paceline.forecast.timeline import Compute, Script, Timeline
from paceline.run.compose.compose import MENUS
from paceline.strategy.compressors.none import NoCompression
from paceline.strategy.schedules import MENU as SCHEDULES
from paceline.types import Layout, Link, Profile, Slot
from paceline.workload.profile import StepProfile, Tensor

MB = 1 << 20
# Layers 3, 2, 1 in the order of their gradients; a second of compute each; 6, 2 and 2 seconds on the link.
SLOTS = (Slot("three", 6 * MB // 4), Slot("two", 2 * MB // 4), Slot("one", 2 * MB // 4))
THREE_LAYERS = Compute(forward=(2.0, 1.0, 0.0), forward_seconds=3.0, ready=(1.0, 2.0, 3.0), backward=3.0)


ALIKE = (RankClass(1, 1.0),)


def period_of(schedule, classes=ALIKE):
    """Seconds of a steady step of the three layers."""
    profile = Profile(Layout(SLOTS), THREE_LAYERS.ready, THREE_LAYERS.forward)
    plan = plan_step(schedule, [profile], Link(0.0, MB), NoCompression(), 2)
    way = way_of(schedule)

    def stages(lane, chunk, phase, step):
        return [RoundStage(0.0, (plan.nbytes[chunk] / MB / way.phases,))]

    played = Timeline(Script(THREE_LAYERS, way, (plan,), stages, classes)).play(6)
    return played.begins[5] - played.begins[4]


@pytest.mark.parametrize(
    ("schedule", "seconds"), [("bsp", 16), ("wfbp", 14), ("priority(1, 1)", 12), ("dear(mb=1)", 12)]
)
def test_three_layers_take_as_long_as_counted_by_hand(schedule, seconds):
    assert period_of(SCHEDULES.make(schedule)) == seconds


@pytest.mark.parametrize("schedule", ["bsp", "wfbp", "priority(1, 1)", "dear(mb=1)"])
def test_a_class_that_is_alike_changes_nothing(schedule):
    member = SCHEDULES.make(schedule)
    assert period_of(member, (RankClass(3, 1.0), RankClass(1, 1.0))) == period_of(member)


def test_everybody_waits_for_a_slow_class():
    assert period_of(SCHEDULES.make("bsp"), (RankClass(3, 1.0), RankClass(1, 2.0))) == 16 + 6


def profile_of(seed, slots=12):
    """Random layers, the first layer last in backward."""
    chance = random.Random(seed)
    sizes = [chance.choice([64, 1000, 40_000, 500_000]) for _ in range(slots)]
    ready = sorted(chance.uniform(0.001, 0.1) for _ in range(slots))
    forward = sorted((chance.uniform(0, 0.05) for _ in range(slots)), reverse=True)
    return StepProfile(
        model="random",
        batch_size=8,
        layout=tuple(Tensor(name=f"t{k}", numel=size) for k, size in enumerate(sizes)),
        forward=tuple(forward),
        forward_seconds=0.06,
        ready=tuple(ready),
        backward=ready[-1],
        update=0.004,
    )


def members(schedule="fusion", exchange="allreduce", rule="grad", compressor="none"):
    words = {"schedule": schedule, "exchange": exchange, "rule": rule, "compressor": compressor}
    return Members(**{axis: MENUS[axis].make(word) for axis, word in words.items()})


FABRIC = Fabric(nodes=4, ranks=2, inside=Line(5e-6, 10e9), between=Line(50e-6, 1.25e9))
SCHEDULES_IN_THE_STEP = ["bsp", "wfbp", "fusion(mb=1)", "mgwfbp"]


@pytest.mark.parametrize("schedule", [*SCHEDULES_IN_THE_STEP, "priority", "dear"])
def test_without_latency_on_infinite_bandwidth_a_step_is_its_compute(schedule):
    profile = profile_of(1)
    free = replace(FABRIC, inside=FREE, between=Line(0.0, inf))
    compute = profile.forward_seconds + profile.backward + profile.update
    assert Job(members(schedule), profile, free).outlook().step == pytest.approx(compute)


@pytest.mark.parametrize("schedule", ["bsp", "wfbp", "mgwfbp"])
@pytest.mark.parametrize("seed", range(6))
def test_a_better_network_never_makes_a_step_longer(schedule, seed):
    def step(latency, bandwidth):
        fabric = replace(FABRIC, between=Line(latency, bandwidth))
        return Job(members(schedule), profile_of(seed), fabric).outlook().step

    by_latency = [step(latency, 1e9) for latency in (0.0, 1e-5, 1e-4, 1e-3)]
    by_bandwidth = [step(1e-5, bandwidth) for bandwidth in (1e11, 1e10, 1e9, 1e8, 1e7)]
    assert by_latency == sorted(by_latency)
    assert by_bandwidth == sorted(by_bandwidth)


def test_averaging_rarely_waits_rarely():
    steps = [Job(members(rule=f"atc(every={k})"), profile_of(2), FABRIC).outlook().step for k in (1, 4, 16)]
    assert steps == sorted(steps, reverse=True)


def test_parameters_that_leave_when_a_step_begins_hide_behind_all_of_it():
    outlook = Job(members(rule="awc", exchange="neighbor(one_peer(exp2))"), profile_of(2), FABRIC).outlook()
    assert outlook.step == pytest.approx(outlook.compute)


def test_rounds_in_which_nobody_waits_run_at_the_pace_of_each_class():
    slow = replace(FABRIC, slow=1, slowness=3.0)
    fast = Job(members(rule="awc", exchange="window(ring)"), profile_of(2), FABRIC).outlook()
    mixed = Job(members(rule="awc", exchange="window(ring)"), profile_of(2), slow).outlook()
    waiting = Job(members(), profile_of(2), slow).outlook()
    assert mixed.rate == pytest.approx(fast.rate * (7 + 1 / 3) / 8)
    assert waiting.step > 3 * waiting.compute


def test_the_computing_thread_cannot_hide_what_it_moves_itself():
    outlook = Job(members("wfbp"), profile_of(3), replace(FABRIC, inline=True)).outlook()
    assert outlook.step == pytest.approx(outlook.compute + outlook.communication, rel=0.02)


def test_a_forecast_loads_no_torch():
    code = "import sys, paceline.forecast.job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

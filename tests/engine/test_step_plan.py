"""What leaves in a step: one code for the engine, and for whoever forecasts it."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.engine.dispatch import Decoupled, Dispatcher, Follower, Leader
from paceline.engine.step_plan import interleave, plan_step, plan_whole, tail_of
from paceline.engine.way import way_of
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import compressors, schedules
from paceline.train.pace import Pace
from paceline.types import Lane, Layout, Link, Plan, Profile, Slot
from paceline.workload.profile import StepProfile, of_slots

LINK = Link(1e-4, 1e6)
PLANNING = ("mgwfbp", "priority(partition=0.0001, credit=0.0002)", "dear(mb=0.0001)")


def layout(*numels, itemsize=4, flags=True, name="w"):
    slots = tuple(Slot(f"{name}{k}", numel) for k, numel in enumerate(numels))
    return Layout(slots, itemsize, len(slots) if flags else 0)


def two_arenas():
    """Three tensors of four bytes and two of eight, each a chunk; flags alone."""
    first, second = layout(10, 20, 30), layout(5, 6, itemsize=8)
    return interleave([first, second], [Plan((0, 10, 30, 60, 63)), Plan((0, 5, 11, 13))])


def test_chunks_of_several_arenas_leave_by_the_place_of_the_slot_that_they_wait_for_last():
    found = two_arenas()
    assert [(chunk.arena, chunk.start) for chunk in found.chunks] == [
        *((0, 0), (1, 0), (0, 10), (1, 5), (1, 11), (0, 30), (0, 60)),
    ]
    assert [chunk.index for chunk in found.chunks] == list(range(7))
    assert found.needs == [(0,), (3,), (1,), (4,), (3, 4), (2,), (0, 1, 2)], "flags wait for all slots of their arena"


def test_bytes_are_those_of_the_arena_of_a_chunk():
    assert two_arenas().nbytes == [40, 40, 80, 48, 16, 120, 12]


def test_a_slot_travels_in_its_own_chunks_and_in_that_of_its_flags():
    assert two_arenas().covers() == [[0, 6], [2, 6], [5, 6], [1, 4], [3, 4]]


def test_flags_of_every_arena_are_more_urgent_than_the_first_layer():
    """The second arena is needed late, but none of its tensors can be updated before its flags are there."""
    starts = [0.2, 0.1, 0.0, 0.9, 0.8]
    urgency = two_arenas().urgency(starts)
    order = sorted(range(7), key=lambda chunk: urgency[chunk])
    assert order == [6, 4, 5, 2, 0, 3, 1]


def test_without_flags_nothing_comes_before_what_is_needed_first():
    bare = interleave([layout(10, 20, flags=False)], [Plan((0, 10, 30))])
    assert bare.urgency([0.5, 0.0]) == [1, 0]


@pytest.mark.parametrize(("tail", "expected"), [("flags", 7), ("mass", 1), ("", 0)])
def test_a_tail_is_a_flag_for_each_slot_or_one_mass(tail, expected):
    assert tail_of(Lane("x", needs_consensus=True, lossy_ok=True, tail=tail), 7) == expected


@pytest.mark.parametrize(
    ("text", "leads", "kind"),
    [
        *(("fusion", True, Dispatcher), ("mgwfbp", False, Dispatcher), ("dear", False, Decoupled)),
        *(("priority", True, Leader), ("priority", False, Follower)),
    ],
)
def test_a_schedule_chooses_who_decides(text, leads, kind):
    plan = plan_whole([layout(10, 20)])
    found = way_of(schedules.MENU.make(text)).dispatcher(plan, [0], leads=leads)
    assert type(found) is kind


@pytest.mark.parametrize("text", ["mgwfbp", "mgwfbp(greedy)"])
def test_layer_times_say_nothing_without_a_link(text):
    known = layout(1000, 2000, 3000)
    profile = Profile(known, (0.1, 0.2, 0.3), (0.2, 0.1, 0.0))
    schedule, none = schedules.MENU.make(text), compressors.MENU.make("none")
    blind = plan_step(schedule, [profile], None, none, 2)
    assert blind == plan_step(schedule, [Profile(known)], LINK, none, 2)
    assert blind.chunks == list(schedule.plan(Profile(known), LINK.seconds).chunks())
    assert blind != plan_step(schedule, [profile], Link(1e-6, 1e9), none, 2), "with one they count"


class Mixed(torch.nn.Module):
    """Layers of two dtypes in turn."""

    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.wide = torch.nn.ModuleList(torch.nn.Linear(8, 8, dtype=torch.float64) for _ in range(2))

    def forward(self, x):
        for narrow, wide in zip(self.narrow, self.wide, strict=True):
            x = wide(narrow(x).double()).float()
        return x


def planned_engine(comm, text):
    """The engine of a run with given layer times and link, once its plan is in force."""
    model = Mixed()
    sizes = [Slot(name, parameter.numel()) for name, parameter in model.named_parameters()]
    times = tuple(0.001 * (k + 1) for k in range(len(sizes)))
    profile = StepProfile(
        layout=of_slots(sizes),
        forward=times,
        forward_seconds=0.01,
        ready=tuple(reversed(times)),
        backward=0.01,
        link={"latency": LINK.latency, "bandwidth": LINK.bandwidth},
    )
    axes = compose(Run(workers=comm.size, schedule=text)).axes
    pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes, profile=profile)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        pace.step()
    pace.finish()
    return pace.engines[0], profile


@pytest.mark.parametrize("text", PLANNING)
def test_an_engine_sends_what_is_planned_without_it(text):
    for engine, profile in run_ranks(2, lambda comm: planned_engine(comm, text)):
        layouts = [arena.layout for arena in engine.arenas]
        assert len(layouts) == 2
        profiles = [profile.for_layout(layout) for layout in layouts]
        plan = plan_step(schedules.MENU.make(text), profiles, LINK, compressors.MENU.make("none"), 2)
        assert (engine.chunks, engine.needs) == (plan.chunks, plan.needs)
        assert len(plan.chunks) > 2
        if engine.schedule.crosses_step:
            assert engine.urgency == plan.urgency([time for known in profiles for time in known.forward])

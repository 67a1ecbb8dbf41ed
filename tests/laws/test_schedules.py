"""What every schedule promises, over its MENU."""

import random
import time

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import schedules
from paceline.train.pace import Pace
from paceline.types import Layout, Profile, Slot
from tests.train.problems import batches, flat, loss_of, mlp

TEXTS = (
    *(*schedules.MENU.names(), "fusion(mb=0.001)", "fusion(mb=1000)", "mgwfbp(greedy)"),
    *("priority(partition=0.001, credit=0.001)", "dear(mb=0.001)", "auto(crossing=true)"),
)


def layouts():
    yield Layout((Slot("only", 1),), 4, 1)
    yield Layout((Slot("empty", 0), Slot("a", 5), Slot("empty too", 0)), 8, 3)
    dice = random.Random(0)
    for _ in range(50):
        sizes = [dice.choice([0, 1, 7, 64, 1000, 5000]) for _ in range(dice.randint(1, 40))]
        yield Layout(tuple(Slot(str(k), size) for k, size in enumerate(sizes)), 4, len(sizes))


@pytest.mark.parametrize("text", TEXTS)
def test_chunks_tile_the_arena(text):
    schedule = schedules.MENU.make(text)
    for layout in layouts():
        plan = schedule.plan(Profile(layout), lambda nbytes: nbytes)
        assert plan.cuts[0] == 0
        assert plan.cuts[-1] == layout.numel
        assert all(chunk.numel > 0 for chunk in plan.chunks())


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_profile_gives_the_same_plan(text):
    for layout in layouts():
        first, second = (schedules.MENU.make(text).plan(Profile(layout), lambda n: n) for _ in range(2))
        assert first == second


@pytest.mark.parametrize("text", TEXTS)
def test_candidates_cross_the_step_if_and_only_if_their_schedule_does(text):
    """Otherwise p.grad would be the mean in some steps of a training only."""
    schedule = schedules.MENU.make(text)
    for candidate in schedule.candidates():
        assert candidate.crosses_step == schedule.crosses_step
        assert not candidate.cuts_tensors or schedule.cuts_tensors
        assert not candidate.candidates()
        assert schedules.MENU.make(str(candidate)) == candidate


@pytest.mark.parametrize("text", TEXTS)
def test_a_schedule_prints_as_it_is_read(text):
    schedule = schedules.MENU.make(text)
    assert schedules.MENU.make(str(schedule)) == schedule


def sizes_of(text, *numels):
    layout = Layout(tuple(Slot(str(k), n) for k, n in enumerate(numels)), 4, len(numels))
    return [chunk.numel for chunk in schedules.MENU.make(text).plan(Profile(layout), lambda n: n).chunks()]


def test_bsp_is_one_chunk():
    assert sizes_of("bsp", 10, 20, 30) == [63]


def test_wfbp_is_one_chunk_per_tensor_and_flags_ride_with_the_last():
    assert sizes_of("wfbp", 10, 20, 30) == [10, 20, 33]
    assert sizes_of("wfbp", 10, 0, 30) == [10, 33]


def test_fusion_closes_a_chunk_when_its_bytes_reach_the_cap():
    mib = 2**18  # elements of four bytes in a MiB
    assert sizes_of("fusion(mb=1)", mib // 2, mib // 2, 7, mib, 5) == [mib, mib + 7, 10]
    assert sizes_of("fusion(mb=1)", mib, mib) == [mib, mib + 2]


def hurried(comm, text):
    """Train on ranks that are never at the same place; the units in the order in which they left, and the weights."""
    dice = random.Random(comm.rank)
    model = mlp()
    pace = Pace(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        comm=comm,
        axes=compose(Run(workers=comm.size, schedule=text)).axes,
    )
    for module in model:
        module.register_forward_pre_hook(lambda *_: time.sleep(dice.random() * 2e-3))
    for parameter in model.parameters():
        parameter.register_hook(lambda _: time.sleep(dice.random() * 2e-3))
    log = []
    pace.record_events(log)
    for x, y in batches(steps=10):
        share = len(x) // comm.size
        loss_of(model, x[comm.rank * share :][:share], y[comm.rank * share :][:share]).backward()
        pace.step()
    pace.finish()
    return [event[2:] for event in log if event[1] == "leave"], flat(model)


@pytest.mark.parametrize("text", TEXTS)
def test_units_leave_in_one_order_on_all_ranks_and_the_result_is_that_of_bsp(text):
    found = run_ranks(3, lambda comm: hurried(comm, text))
    expected = run_ranks(3, lambda comm: hurried(comm, "bsp"))
    for order, weights in found:
        assert order == found[0][0]
        assert len(set(order)) == len(order), "a unit left twice"
        assert (weights - expected[0][1]).abs().max() <= 1e-6

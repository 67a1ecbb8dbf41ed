"""What every schedule promises, over its MENU."""

import random

import pytest

from paceline import schedules
from paceline.types import Layout, Profile, Slot

TEXTS = (*schedules.MENU.names(), "fusion(mb=0.001)", "fusion(mb=1000)", "mgwfbp(greedy)")


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

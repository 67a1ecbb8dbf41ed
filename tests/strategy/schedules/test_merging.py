import random
from itertools import combinations
from time import perf_counter

import pytest

from paceline.strategy.schedules import _merging as merging
from paceline.strategy.schedules.mgwfbp import MgWfbp
from paceline.types import Layout, Link, Profile, Slot

READY, SIZES = (1, 2.5, 4, 5.5), (10, 0.1, 0.1, 0.1)


def brute(ready, sizes, a, b):
    """Every way to cut."""
    count = len(sizes)
    inner = range(1, count)
    ways = (cuts for k in range(count) for cuts in combinations(inner, k))
    return min(merging.finish([*cuts, count], ready, sizes, a, b) for cuts in ways)


def test_the_worked_example():
    def seconds(groups):
        return merging.finish(groups, READY, SIZES, 2, 1)

    assert seconds(merging.best(READY, SIZES, 2, 1)) == pytest.approx(15.3)
    assert seconds([1, 2, 3, 4]) == pytest.approx(19.3)
    assert seconds([4]) == pytest.approx(17.8)
    assert merging.greedy(READY, SIZES, 2, 1) == [4]


def instance(dice):
    count = dice.randint(1, 12)
    ready = sorted(dice.uniform(0, 10) for _ in range(count))
    sizes = [dice.choice([0.01, 0.1, 1, 5]) * dice.random() for _ in range(count)]
    return ready, sizes, dice.choice([0, 0.1, 1, 5]) * dice.random(), dice.choice([0.1, 1, 3])


def test_the_optimum_equals_brute_force_and_greedy_is_sometimes_worse():
    dice = random.Random(4)
    worse = 0
    for _ in range(1000):
        ready, sizes, a, b = instance(dice)
        least = brute(ready, sizes, a, b)
        assert merging.finish(merging.best(ready, sizes, a, b), ready, sizes, a, b) == pytest.approx(least)
        worse += merging.finish(merging.greedy(ready, sizes, a, b), ready, sizes, a, b) > least * (1 + 1e-9)
    assert worse > 50


def fewest(ready, sizes, a, b):
    """The least number of messages among all ways to cut that finish first; exact, with whole numbers."""
    count = len(sizes)
    ways = [[*cuts, count] for k in range(count) for cuts in combinations(range(1, count), k)]
    times = [merging.finish(cuts, ready, sizes, a, b) for cuts in ways]
    return min(len(cuts) for cuts, time in zip(ways, times, strict=True) if time == min(times))


def test_among_equals_it_takes_the_fewest_messages():
    dice = random.Random(6)
    for _ in range(600):
        count = dice.randint(1, 9)
        ready = sorted(dice.randint(0, 12) for _ in range(count))
        sizes = [dice.randint(0, 4) for _ in range(count)]
        a, b = dice.randint(0, 3), dice.randint(0, 2)
        found = merging.best(ready, sizes, a, b)
        assert merging.finish(found, ready, sizes, a, b) == brute(ready, sizes, a, b)
        assert len(found) == fewest(ready, sizes, a, b), (ready, sizes, a, b)


def test_many_tensors_are_planned_in_columns():
    dice = random.Random(7)
    ready = sorted(dice.uniform(0, 1) for _ in range(2 * merging.COLUMNS + 10))
    sizes = [dice.random() for _ in ready]
    found = merging.best(ready, sizes, 0.01, 0.001)
    assert found == sorted(set(found))
    assert found[-1] == len(sizes)
    seconds = merging.finish(found, ready, sizes, 0.01, 0.001)
    assert seconds <= min(merging.finish([k, len(sizes)], ready, sizes, 0.01, 0.001) for k in range(1, len(sizes)))


def test_without_latency_it_takes_as_long_as_wfbp_and_with_much_it_is_one_chunk():
    dice = random.Random(5)
    for _ in range(100):
        ready, sizes, _, b = instance(dice)
        each = list(range(1, len(sizes) + 1))
        found = merging.finish(merging.best(ready, sizes, 0, b), ready, sizes, 0, b)
        assert found == pytest.approx(merging.finish(each, ready, sizes, 0, b))
        assert merging.best(ready, sizes, 1e6, b) == [len(sizes)]


def profile_of(count, dice):
    layout = Layout(tuple(Slot(str(k), dice.randint(1, 10**6)) for k in range(count)), 4, count)
    return Profile(layout, tuple(sorted(dice.random() for _ in range(count))))


def plain(ready, sizes, a, b):
    """The same recurrence without vectors."""
    totals = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    done = [0.0]
    for j in range(1, len(sizes) + 1):
        done.append(min(max(done[i], ready[j - 1]) + a + b * (totals[j] - totals[i]) for i in range(j)))
    return done[-1]


def test_400_tensors_are_planned_faster_than_by_the_plain_recurrence():
    profile = profile_of(400, random.Random(6))
    sizes = [4 * slot.numel for slot in profile.layout.slots]
    began = perf_counter()
    expected = plain(profile.ready, sizes, 1e-4, 1e-9)
    middle = perf_counter()
    groups = merging.best(profile.ready, sizes, 1e-4, 1e-9)
    end = perf_counter()
    assert merging.finish(groups, profile.ready, sizes, 1e-4, 1e-9) == pytest.approx(expected)
    assert end - middle < middle - began


def test_a_plan_before_the_profile_is_one_chunk_and_after_it_the_optimum():
    dice = random.Random(7)
    profile, link = profile_of(30, dice), Link(0.02, 1e8)
    assert len(MgWfbp().plan(Profile(profile.layout), link.seconds).cuts) == 2
    cuts = MgWfbp().plan(profile, link.seconds).cuts
    sizes = [4 * slot.numel for slot in profile.layout.slots]
    ends = [profile.layout.offsets.index(cut) for cut in cuts[1:-1]] + [30]
    b = 1 / 1e8
    groups = merging.best(profile.ready, sizes, 0.02, b)
    assert merging.finish(ends, profile.ready, sizes, 0.02, b) == pytest.approx(
        merging.finish(groups, profile.ready, sizes, 0.02, b)
    )

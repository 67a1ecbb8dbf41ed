"""Tasks: every shard has one owner, ranges are contiguous, slow members get fewer, and nothing is dropped."""

import random
from itertools import product

import pytest

from paceline.elastic.protocol import Registry, Report
from paceline.elastic.tasks import (
    GAIN,
    SEEN,
    Speeds,
    at_border,
    computing,
    dealt,
    fastest,
    near_border,
    ranges_of,
    shares_of,
    span,
)


def jobs(count, *, most=8, more=32):
    """Yield numbers of shards, and seconds per shard of members that differ by up to seven powers of ten."""
    dice = random.Random(5)
    for _ in range(count):
        spread = dice.choice((0.0, 0.2, 1.0, 3.5))
        seconds = [10 ** dice.uniform(-spread, spread) for _ in range(dice.randint(1, most))]
        yield len(seconds) + dice.randint(0, more), seconds


def test_every_shard_has_one_owner_and_ranges_are_contiguous():
    dice = random.Random(6)
    for shards, seconds in jobs(2000):
        known = [value if dice.random() < 0.8 else None for value in seconds]
        lengths = dealt(shards, known)
        assert (len(lengths), min(lengths) >= 1) == (len(seconds), True)
        assert [shard for mine in ranges_of(lengths) for shard in mine] == list(range(shards))


def test_a_slower_member_gets_at_most_as_many_and_one_more():
    for shards, seconds in jobs(1000):
        lengths = fastest(shards, seconds)
        for a, b in product(range(len(seconds)), repeat=2):
            assert seconds[a] <= seconds[b] or lengths[a] <= lengths[b] + 1


def test_no_other_deal_is_faster():
    for shards, seconds in jobs(300, most=3, more=6):
        deals = [deal for deal in product(range(1, shards + 1), repeat=len(seconds)) if sum(deal) == shards]
        best = min(span(deal, seconds) for deal in deals)
        assert span(fastest(shards, seconds), seconds) == pytest.approx(best)
        assert span(dealt(shards, seconds), seconds) <= (1 + GAIN) * best * (1 + 1e-9)


@pytest.mark.parametrize("members", range(1, 9))
def test_equal_members_have_an_equal_deal(members):
    for shards in range(members, 40):
        assert ranges_of(dealt(shards, [0.7] * members)) == shares_of(shards, members)
        assert dealt(shards, [None] * members) == dealt(shards, [0.7] * members)


def test_a_member_four_times_as_slow_has_one_of_eight_shards():
    assert dealt(8, [0.01, 0.01, 0.01, 0.04]) == (3, 2, 2, 1)
    assert dealt(8, [0.01, None, 0.01, 0.04]) == (3, 2, 2, 1)
    assert dealt(8, [0.010, 0.011, 0.009, 0.0105]) == (2, 2, 2, 2)  # no gain is worth a new group


def test_borders_lie_between_tasks_and_a_deal_is_decided_shortly_before():
    assert [steps for steps in range(1, 13) if at_border(steps, 5)] == [5, 10]
    assert [steps for steps in range(1, 11) if near_border(steps, 5)] == [3, 4, 5, 8, 9, 10]
    assert not at_border(5, 0)
    assert not near_border(5, 0)


def test_speeds_are_medians_and_known_after_some_steps():
    speeds = Speeds()
    for k in range(SEEN):
        assert speeds.of(["a"]) == [None]
        speeds.hear("a", 0.02 if k else 9.0, 2)
    assert speeds.of(["a", "b"]) == [0.01, None]
    speeds.keep(["b"])
    assert speeds.of(["a"]) == [None]


def test_a_window_forgets_what_was_slow_before():
    speeds = Speeds(kept=SEEN)
    for seconds in (9.0, 9.0, 9.0, 1.0, 1.0):
        speeds.hear("a", seconds, 1)
    assert speeds.of(["a"]) == [1.0]


@pytest.mark.parametrize(("value", "seconds"), [(0.5, 0.5), (-1, 0.0), ("x", 0.0), (float("inf"), 0.0), (None, 0.0)])
def test_strange_seconds_of_a_member_count_nothing(value, seconds):
    assert computing({"compute": value, "wire": 7.0}) == seconds


# the registry ---------------------------------------------------------------------------------------


def at_work(seconds, shards=8, task=10):
    """Return a registry whose members have reported their speed."""
    registry = Registry(start=len(seconds), task=task, shards=shards)
    for name in seconds:
        registry.arrive(Report(name))
    group = registry.form()
    report(registry, seconds)
    return registry, group


def report(registry, seconds):
    group = registry.group
    for name, length in zip(group.members, group.lengths, strict=True):
        for _ in range(SEEN):
            registry.time(name, group.generation, seconds[name] * length)


def back(registry, *names, steps=10, **facts):
    for name in names:
        registry.arrive(Report(name, registry.group.generation, steps, holds=True, **facts))
    return registry.form()


SLOW = {"a": 1.0, "b": 1.0, "c": 1.0, "d": 4.0}


def test_a_slow_member_gets_fewer_tasks_once():
    registry, group = at_work(SLOW)
    assert group.lengths == (2, 2, 2, 2)
    assert registry.wants_deal
    assert back(registry, *"abcd").lengths == (3, 2, 2, 1)
    report(registry, SLOW)
    assert not registry.wants_deal


def test_tasks_are_dealt_anew_when_a_slow_member_recovers():
    registry, _ = at_work(SLOW)
    back(registry, *"abcd")
    for _ in range(20):
        report(registry, dict.fromkeys("abcd", 1.0))
    assert registry.wants_deal
    assert back(registry, *"abcd").lengths == (2, 2, 2, 2)


def test_equal_members_and_jobs_without_tasks_keep_their_deal():
    assert not at_work(dict.fromkeys("abcd", 1.0))[0].wants_deal
    registry, _ = at_work(SLOW, task=0)
    assert not registry.wants_deal
    assert back(registry, *"abcd").lengths == (2, 2, 2, 2)


def test_the_tasks_of_a_lost_member_change_hands():
    registry, _ = at_work(SLOW)
    registry.lose("b", dead=True)
    assert not registry.wants_deal  # the group ends anyway
    group = back(registry, *"acd", suspects=("b",))
    assert group.members == ("a", "c", "d")
    assert group.lengths == (4, 3, 1)
    assert sum(group.lengths) == 8


def test_a_newcomer_counts_as_an_average_member():
    registry, _ = at_work(SLOW)
    registry.arrive(Report("new"))
    group = back(registry, *"abcd")
    assert dict(zip(group.members, group.lengths, strict=True)) == {"a": 2, "b": 2, "c": 2, "d": 1, "new": 1}


def test_seconds_of_an_old_generation_count_nothing():
    registry, _ = at_work(dict.fromkeys("abcd", 1.0))
    back(registry, *"abcd")
    for _ in range(50):
        registry.time("d", 1, 99.0)
    assert not registry.wants_deal


def test_no_group_has_more_members_than_shards():
    registry = Registry(start=3, shards=2, task=10)
    for name in "abc":
        registry.arrive(Report(name))
    group = registry.form()
    assert (len(group.members), group.lengths) == (2, (1, 1))
    assert not registry.wants_change

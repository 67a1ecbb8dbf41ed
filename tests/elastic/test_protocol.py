"""The elastic protocol under random schedules, and its rules one by one.

`python -m tests.elastic.test_protocol 100000` is the long form: so many schedules for each way to move data.
"""

import argparse
import sys
import time

import pytest

from paceline.elastic.protocol import (
    COMMIT,
    LEAVE,
    SKIP,
    WAIT,
    BrokenPromise,
    Registry,
    Report,
    ready_of,
    slot_of,
    steps_that_count,
    subtrees,
    verdict_of,
)
from paceline.elastic.tasks import shares_of
from tests.elastic.simulator import STEPS, Violation, World


def violations(seeds, **settings):
    """Return the seeds that broke a promise, and how many schedules came to their end, rolled back, dealt anew."""
    broken, finished, rolled, deals = [], 0, 0, 0
    for seed in seeds:
        world = World(seed, **settings)
        try:
            world.run()
        except (Violation, BrokenPromise) as problem:
            broken.append((seed, str(problem)))
        finished += any(member.committed >= STEPS for member in world.members.values())
        rolled += world.rollbacks > 0
        deals += world.deals > 0
    return broken, finished, rolled, deals


@pytest.mark.parametrize("rule", ["shm", "tcp"])
def test_no_schedule_of_faults_breaks_a_promise(rule):
    broken, finished, rolled, deals = violations(range(1500), rule=rule)
    assert not broken
    assert finished > 1200  # the others lost all members, or ran out of events
    assert deals > 100  # a slow member got fewer tasks
    assert rolled > 20  # everything was killed, and went on from a checkpoint


@pytest.mark.parametrize("off", ["fencing", "votes", "journal"])
@pytest.mark.parametrize("rule", ["shm", "tcp"])
def test_without_its_mechanism_a_promise_breaks(rule, off):
    assert any(violations([seed], rule=rule, **{off: False})[0] for seed in range(400))


def test_a_step_commits_with_all_votes_and_without_a_fence():
    assert verdict_of([True, True], [True, True], False) == COMMIT
    assert verdict_of([True, True], [True, False], False) == SKIP
    assert verdict_of([True, False], [True, True], False) == WAIT
    assert verdict_of([True, False], [True, True], True) == LEAVE
    assert verdict_of([True, True], [True, True], True) == LEAVE


def test_one_who_saw_all_votes_is_enough_on_shm_and_all_must_have_the_result_on_tcp():
    mixed = [Report("a", 1, 5, ready=True), Report("b", 1, 5, ready=False)]
    assert steps_that_count("shm", mixed) == 6
    assert steps_that_count("tcp", mixed) == 5
    assert steps_that_count("tcp", [Report("a", 1, 6), Report("b", 1, 5, ready=True)]) == 6


def formed(*reports, start=2, **settings):
    registry = Registry(start=start, **settings)
    for report in reports:
        registry.arrive(report)
    return registry, registry.form()


def test_the_first_generation_waits_for_all_who_were_started():
    registry, group = formed(Report("a"))
    assert group is None
    registry.arrive(Report("b"))
    assert registry.form().members == ("a", "b")


def test_a_newcomer_never_decides_and_is_never_the_source():
    registry, _ = formed(Report("a"), Report("b"))
    registry.arrive(Report("new", committed=99))
    assert registry.wants_change
    assert registry.form() is None
    for name in ("a", "b"):
        registry.arrive(Report(name, 1, 7, holds=True))
    group = registry.form()
    assert (group.generation, group.members, group.steps, group.fresh) == (2, ("a", "b", "new"), 7, ("new",))


def test_a_member_of_an_old_generation_comes_back_as_a_newcomer():
    registry, _ = formed(Report("a"), Report("b"))
    registry.arrive(Report("a", 1, 3, suspects=("b",), holds=True))
    assert registry.form().members == ("a",)
    registry.arrive(Report("b", 1, 4, ready=True, holds=True))
    registry.arrive(Report("a", 2, 9, holds=True))
    group = registry.form()
    assert group.steps == 9
    assert group.fresh == ("b",)


def test_members_that_cannot_be_reached_are_not_replaced_but_dead_ones_are():
    registry, _ = formed(Report("a"), Report("b"))
    registry.arrive(Report("new"))
    for name in ("a", "b"):
        registry.lose(name, dead=False)
    assert registry.form() is None
    for name in ("a", "b"):
        registry.lose(name, dead=True)
    assert registry.form().members == ("new",)


def test_more_than_the_maximum_wait_outside():
    registry, group = formed(*(Report(name) for name in "abc"), start=3, maximum=2)
    assert len(group.members) == 2
    assert not registry.wants_change


def test_those_who_wait_learn_why():
    registry, _ = formed(Report("a"))
    assert registry.lacking == "1 of 2 workers are here; the first group waits for all of them"
    registry, _ = formed(Report("a"), Report("b"), minimum=2)
    registry.arrive(Report("a", 1, 3, suspects=("b",), holds=True))
    assert registry.form() is None
    assert registry.lacking == "1 members are here; a group needs at least 2"
    registry.arrive(Report("new"))
    assert registry.lacking == "members of generation 1 have not left it yet: b"


@pytest.mark.parametrize("members", range(1, 9))
def test_shares_cover_all_shards_once_and_subtrees_cover_a_share(members):
    shares = shares_of(8, members)
    assert [shard for share in shares for shard in share] == list(range(8))
    for share in shares:
        trees = subtrees(share, 8)
        assert [shard for tree in trees for shard in tree] == list(share)
        for tree in trees:
            assert len(tree) & (len(tree) - 1) == 0
            assert tree.start % len(tree) == 0


def test_a_member_that_missed_the_answer_gets_it_again():
    registry, group = formed(Report("a"), Report("b"))
    assert registry.answer_to(Report("a")) == group
    assert registry.answer_to(Report("a", 1, 3, holds=True)) is None
    assert registry.answer_to(Report("new")) is None


def test_on_shm_all_votes_must_be_seen_and_on_tcp_the_own_result_is_enough_to_be_ready():
    assert ready_of("tcp", voted=True, all_voted=False)
    assert not ready_of("shm", voted=True, all_voted=False)
    assert ready_of("shm", voted=True, all_voted=True)
    assert not ready_of("tcp", voted=False, all_voted=False)


def test_the_slot_of_a_launcher_is_in_the_name_of_a_member():
    assert [slot_of(name) for name in ("3-4711-000001", "a", "-1")] == [3, -1, -1]


def main():
    parser = argparse.ArgumentParser(prog="tests.elastic.test_protocol")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--rule", choices=("shm", "tcp"), action="append")
    chosen = parser.parse_args()
    for rule in chosen.rule or ("shm", "tcp"):
        began, seeds = time.process_time(), range(chosen.first, chosen.first + chosen.count)
        broken, finished, rolled, deals = violations(seeds, rule=rule)
        print(
            f"{rule}: {chosen.count:,} schedules from seed {chosen.first:,}, {finished:,} trained to their end, "
            f"{rolled:,} rolled back, {deals:,} dealt tasks anew, {len(broken)} violations, "
            f"{time.process_time() - began:.0f} s",
            flush=True,
        )
        if broken:
            print(*broken[:10], sep="\n")
            sys.exit(1)


if __name__ == "__main__":
    main()

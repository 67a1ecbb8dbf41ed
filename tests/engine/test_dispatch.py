import random

import pytest

from paceline.engine.dispatch import Decoupled, Dispatcher, Follower, Leader
from paceline.types import Unit


def test_a_chunk_leaves_when_its_last_slot_is_ready():
    dispatcher = Dispatcher([(0, 1), (2,)])
    dispatcher.begin(4)
    assert dispatcher.ready(0) == []
    assert dispatcher.ready(1) == [Unit(4, 0)]
    assert dispatcher.ready(2) == [Unit(4, 1)]


def test_chunks_leave_in_the_order_of_the_plan_whatever_is_ready_first():
    dispatcher = Dispatcher([(0,), (1,), (2,)])
    dispatcher.begin(0)
    assert dispatcher.ready(2) == []
    assert dispatcher.ready(0) == [Unit(0, 0)]
    assert dispatcher.ready(1) == [Unit(0, 1), Unit(0, 2)]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_readiness_sends_every_chunk_once_in_one_order(seed):
    dice = random.Random(seed)
    count = dice.randint(1, 30)
    needs = [tuple(sorted(dice.sample(range(count), dice.randint(1, count)))) for _ in range(10)]
    dispatcher = Dispatcher(needs)
    for step in range(3):
        left = list(dispatcher.begin(step))
        for slot in dice.sample(range(count), count):
            left += dispatcher.ready(slot)
        assert left == [Unit(step, chunk) for chunk in range(10)]


def test_a_slot_that_is_ready_twice_is_an_error():
    dispatcher = Dispatcher([(0, 1)])
    dispatcher.begin(0)
    dispatcher.ready(0)
    with pytest.raises(ValueError, match="ready twice"):
        dispatcher.ready(0)


def test_a_chunk_cut_through_a_tensor_waits_for_that_tensor():
    dispatcher = Dispatcher([(0,), (0, 1), (1,)])
    dispatcher.begin(0)
    assert dispatcher.ready(0) == [Unit(0, 0)]
    assert dispatcher.ready(1) == [Unit(0, 1), Unit(0, 2)]


def test_the_second_phase_leaves_when_the_first_is_back():
    dispatcher = Dispatcher([(0,)], phases=2)
    dispatcher.begin(0)
    (first,) = dispatcher.ready(0)
    assert dispatcher.back(first) == [Unit(0, 0, 1)]
    assert dispatcher.back(Unit(0, 0, 1)) == []


def test_a_chunk_that_needs_nothing_leaves_at_the_beginning():
    assert Dispatcher([(), (0,)]).begin(7) == [Unit(7, 0)]


def leader(**settings):
    values = {"urgency": (2, 1, 0), "nbytes": (4, 4, 4), "credit": 8, **settings}
    found = Leader([(0,), (1,), (2,)], **values)
    found.begin(0)
    return found


def test_the_leader_takes_the_ready_chunk_that_is_needed_first():
    found = leader(credit=4)
    assert found.ready(0) == [Unit(0, 0)]
    assert found.ready(1) == found.ready(2) == []
    assert found.back(Unit(0, 0)) == [Unit(0, 2)]
    assert found.back(Unit(0, 2)) == [Unit(0, 1)]


def test_the_leader_keeps_within_its_credit():
    found = leader()
    assert found.ready(0) == [Unit(0, 0)]
    assert found.ready(1) == [Unit(0, 1)]
    assert found.ready(2) == []
    assert found.back(Unit(0, 1)) == [Unit(0, 2)]


def test_a_chunk_above_the_credit_leaves_alone():
    found = leader(nbytes=(4, 100, 4))
    assert found.ready(1) == [Unit(0, 1)]
    assert found.ready(2) == found.ready(0) == []
    assert found.back(Unit(0, 1)) == [Unit(0, 2), Unit(0, 0)]


def test_what_forward_waits_for_jumps_the_queue_and_leaves_once():
    found = leader(credit=4, urgency=(0, 1, 2))
    left = found.ready(0) + found.ready(1) + found.ready(2)
    assert left == [Unit(0, 0)]
    assert found.need(2) == []
    assert found.back(Unit(0, 0)) == [Unit(0, 2)]
    assert found.back(Unit(0, 2)) == [Unit(0, 1)]
    assert found.back(Unit(0, 1)) == []


def random_run(dice, found, count, nbytes):
    """Readiness and returns in any order; the units that left, and the most bytes that were under way."""
    flying, left, most = list(found.begin(0)), [], 0
    slots = dice.sample(range(count), count)
    left += flying
    while slots or flying:
        first = slots and (not flying or dice.random() < 0.5)
        units = found.ready(slots.pop()) if first else found.back(flying.pop(0))
        flying += units
        left += units
        most = max(most, sum(nbytes[unit.chunk] for unit in flying))
    return left, most


@pytest.mark.parametrize("seed", range(20))
def test_the_leader_sends_every_chunk_once_within_credit(seed):
    dice = random.Random(seed)
    count, chunks = dice.randint(1, 20), 12
    needs = [tuple(dice.sample(range(count), dice.randint(0, min(3, count)))) for _ in range(chunks)]
    nbytes = [dice.randint(1, 10) for _ in range(chunks)]
    found = Leader(needs, urgency=[dice.randint(0, 5) for _ in range(chunks)], nbytes=nbytes, credit=15)
    left, most = random_run(dice, found, count, nbytes)
    assert sorted(left) == [Unit(0, chunk) for chunk in range(chunks)]
    assert most <= 15


def test_a_follower_sends_what_was_said_when_it_is_ready_here():
    found = Follower([(0,), (1,)])
    assert found.begin(3) == []
    assert found.ready(0) == []
    assert found.announced(1) == []
    assert found.listening
    assert found.announced(0) == []
    assert not found.listening
    assert found.ready(1) == [Unit(3, 1), Unit(3, 0)]


@pytest.mark.parametrize("seed", range(20))
def test_decoupled_calls_are_in_one_order_whatever_comes_back_first(seed):
    dice = random.Random(seed)
    found = Decoupled([(0,), (1,), (2,)], urgency=(2, 1, 0))
    calls = list(found.begin(0))
    for slot in dice.sample(range(3), 3):
        calls += found.ready(slot)
    for chunk in dice.sample(range(3), 3):
        calls += found.back(Unit(0, chunk, 0))
    first = [Unit(0, chunk, 0) for chunk in (0, 1, 2)]
    assert calls == [*first, *(Unit(0, chunk, 1) for chunk in (2, 1, 0))]


def test_a_second_phase_never_overtakes_a_first_one():
    found = Decoupled([(0,), (1,)], urgency=(0, 1))
    found.begin(0)
    found.ready(0)
    assert found.back(Unit(0, 0, 0)) == []
    assert found.ready(1) == [Unit(0, 1, 0)]
    assert found.back(Unit(0, 1, 0)) == [Unit(0, 0, 1), Unit(0, 1, 1)]

import random

import pytest

from paceline.engine.dispatch import Dispatcher
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

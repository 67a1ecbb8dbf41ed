"""Verdicts are over starts, because blocks inside one process say nothing about the next process."""

import random

import pytest

from paceline.cli.compare import spoken
from paceline.errors import WrongCommand
from paceline.race.compare import Comparison, compare
from tests.report.samples import record

INSIDE, BETWEEN = 0.01, 0.03
START = record()


def simulated(dice, truth=100.0, count=5):
    """Return simulated starts of one configuration, each with its own level and blocks around it."""
    found = []
    for _ in range(count):
        level = truth * dice.gauss(1, BETWEEN)
        blocks = [level * dice.gauss(1, INSIDE) for _ in range(5)]
        total = {"mean": sum(blocks) / len(blocks), "repeats": blocks}
        found.append(START.model_copy(update={"rate": {"total": total}}))
    return tuple(found)


@pytest.mark.parametrize("count", [5, 10])
def test_a_configuration_against_itself_is_seldom_called_different(count):
    dice = random.Random(count)
    called = [Comparison(simulated(dice, count=count), simulated(dice, count=count)).differs for _ in range(1000)]
    assert sum(called) <= 70


def test_one_start_of_each_is_never_a_verdict():
    dice = random.Random(1)
    for truth in (100.0, 200.0):
        found = Comparison(simulated(dice, truth, count=1), simulated(dice, count=1))
        assert found.differs is None
        assert found.ratio.centre == pytest.approx(truth / 100, rel=0.2)
        assert (found.ratio.low, found.ratio.high) == (None, None)


def test_a_difference_that_is_there_is_found():
    dice = random.Random(2)
    called = [Comparison(simulated(dice, 115.0), simulated(dice)).differs for _ in range(200)]
    assert sum(called) >= 190


def test_fewer_than_five_starts_of_a_side_give_an_interval_and_no_verdict():
    dice = random.Random(3)
    found = Comparison(simulated(dice, 200.0, count=5), simulated(dice, count=4))
    assert found.ratio.low > 1
    assert found.differs is None


def test_starts_of_one_side_are_of_one_run_on_one_machine():
    one, again = record(start=1), record(start=2, run={"seed": 7})
    assert compare([one, again], [record("ddp", start=3)]).starts == 1
    with pytest.raises(WrongCommand, match="not starts of one run: run steps is 5 and 9"):
        compare([one, record(start=2, run={"steps": 9})], [again])
    other = one.model_copy(update={"id": "other", "environment": {**one.environment, "cores": 64}})
    with pytest.raises(WrongCommand, match="not starts of one run: cores is 2 and 64"):
        compare([one], [again, other])


def test_a_busy_machine_is_a_difference():
    busy = START.model_copy(update={"busy": {"other_cores": 1.8, "cores": 2}})
    free = START.model_copy(update={"busy": {"other_cores": 0.0, "cores": 2}})
    assert compare([busy], [free]).busy == ("other processes used 1.8 of 2 cores", "")
    lines = list(spoken(compare([busy], [free])))
    assert "A ran on a busy machine: other processes used 1.8 of 2 cores." in lines
    assert not any(line.startswith("Nothing else differs") for line in lines)
    assert any(line.startswith("Nothing else differs") for line in spoken(compare([free], [free])))

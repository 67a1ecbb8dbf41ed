"""Measuring the starts of a race: the plan has composed every run, and nothing composes it again."""

import pytest

from paceline.errors import PacelineError
from paceline.race import measured
from paceline.race.cells import starts_of
from paceline.race.plan import plan
from paceline.race.suite import Suite


class Seen(Exception):
    """Ends a measurement that would start processes."""


@pytest.fixture
def planned(monkeypatch):
    result = plan(Suite(contenders=["allreduce"], models=["mlp"], workers=[2], rounds=1))

    def refuse(run):
        raise PacelineError("composed again", why=str(run))

    monkeypatch.setattr(measured, "check", refuse)
    return result


def test_a_plan_hands_on_what_compose_has_found(planned):
    assert [cell.composed.run for cell in planned.cells] == [cell.run for cell in planned.cells]
    references = {cell.label for cell in planned.cells if cell.composed.axes is None}
    assert references == {"one worker", "limit", "ddp"}


def test_starts_of_a_race_are_not_composed_again(planned, monkeypatch):
    def seen(*arguments, composed, **settings):
        raise Seen(composed)

    monkeypatch.setattr(measured, "measure", seen)
    monkeypatch.setattr(measured, "measure_together", seen)
    measurer = measured.Measured()
    for start in starts_of(planned.cells, {}):
        arguments = (start, 1.0) if start.shared else (start.cells[0],)
        with pytest.raises(Seen) as caught:
            (measurer.together if start.shared else measurer.alone)(*arguments, lambda *_: None)
        expected = [cell.composed for cell in start.cells]
        assert caught.value.args[0] == (expected if start.shared else expected[0])


def test_a_cell_without_a_plan_is_composed_when_it_is_measured(planned):
    cell = next(cell for cell in planned.cells if cell.label == "allreduce")
    bare = type(cell)(cell.name, cell.heat, cell.label, cell.round, cell.run)
    with pytest.raises(PacelineError, match="composed again"):
        measured.Measured().alone(bare, lambda *_: None)

"""Rules that exchange every few steps are timed over whole periods, or a note says that they were not."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from paceline.cli.race_view import spoken
from paceline.measure.combining import make_record
from paceline.measure.periods import in_periods, is_uneven, period_of
from paceline.race.cells import BASELINE
from paceline.race.plan import plan
from paceline.race.results.verdict import verdict
from paceline.race.script_record import _in_blocks
from paceline.run.run import Run
from paceline.strategy import rules
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane
from tests.measure.test_measure import BLOCKS, level, rank_of
from tests.race.fake_race import drawn, raced, small

EVERY_EIGHT = Run(workers=2, model="mlp", strategy="local_sgd")


def notes_of(run, warm, steps):
    ranks = [rank_of(number, level(warm), level(steps)) for number in range(run.workers)]
    record = make_record(run, [], ranks)
    return [note for note in record.notes if note.startswith("rule ")], record


def told(result):
    [heat] = result.plan.heats
    return list(spoken(verdict(result.field_of(heat), heat.workers)))


@dataclass(frozen=True)
class Seldom(RuleTraits):
    """Exchanges after `rounds` x 3 steps: no setting of it is a number of steps."""

    rounds: int = 2

    name: ClassVar[str] = "seldom"
    lanes: ClassVar[tuple[Lane, ...]] = (Lane("parameters", needs_consensus=True, lossy_ok=False),)
    leaves: ClassVar[str] = "update"

    @property
    def intervals(self):
        return (3 * self.rounds,)


def test_a_rule_says_its_period_whatever_its_settings_are_called(monkeypatch):
    monkeypatch.setitem(rules.MENU.members, "seldom", f"{__name__}:Seldom")
    run = Run(workers=2, model="mlp", rule="seldom(rounds=4)", steps=20, repeats=2, warmup=5)
    assert period_of(run) == 12
    assert (in_periods(run).steps, in_periods(run).warmup) == (24, 12)
    [note], _ = notes_of(run, 12, 8)
    assert note.startswith("rule seldom(rounds=4) did not exchange in the 8 measured steps")


# the plan -------------------------------------------------------------------------------------------


def test_a_contender_with_a_period_is_measured_over_whole_periods():
    suite = small(contenders=["local_sgd", "diloco", "allreduce"], run={"steps": 5, "warmup": 3, "repeats": 3})
    planned = plan(suite)
    lengths = {e.label: (e.run.warmup, e.run.repeats, e.run.steps) for e in planned.entries}
    assert lengths["allreduce"] == lengths["ddp"] == lengths[BASELINE] == (3, 3, 5)
    assert lengths["local_sgd"] == (8, 2, 8)
    assert lengths["diloco"] == (50, 1, 50)
    assert [note.partition(":")[0] for note in planned.notes] == [
        "local_sgd repeats itself every 8 steps",
        "diloco repeats itself every 50 steps",
    ]


def test_steps_that_are_whole_periods_are_left_alone():
    run = EVERY_EIGHT.with_(steps=16, warmup=8, repeats=3)
    assert in_periods(run) == run
    assert in_periods(run.with_(strategy="allreduce", steps=5)).steps == 5
    assert in_periods(run.with_(steps=None, epochs=2)).epochs == 2
    assert plan(small(contenders=["local_sgd"], run={"steps": 16, "warmup": 8})).notes == []


def test_a_script_chooses_its_steps_itself_whatever_the_period():
    planned = plan(small(contenders=["local_sgd"]), script=["python", "t.py"])
    assert len({(e.run.steps, e.run.warmup, e.run.repeats) for e in planned.entries}) == 1
    assert planned.notes == []


# a run ----------------------------------------------------------------------------------------------


def test_measured_steps_without_an_exchange_say_so():
    [note], record = notes_of(EVERY_EIGHT.with_(strategy="diloco"), 3, 20)
    assert "did not exchange in the 20 measured steps" in note
    assert note.endswith("blocks of 50 steps would hold whole periods")
    assert is_uneven(record, 50)


def test_blocks_that_are_no_whole_periods_say_so():
    [note], record = notes_of(EVERY_EIGHT, 3, 40)
    assert "too often or too seldom in blocks of 10 steps; blocks of 16 steps" in note
    assert is_uneven(record, 8)


@pytest.mark.parametrize("run", [EVERY_EIGHT, EVERY_EIGHT.with_(strategy="wfbp"), EVERY_EIGHT.with_(strategy="ddp")])
def test_whole_periods_need_no_note(run):
    found, record = notes_of(run, 3, 8 * BLOCKS)
    assert found == []
    assert not is_uneven(record, period_of(run))
    assert notes_of(EVERY_EIGHT.with_(workers=1), 3, 20)[0] == []


def test_too_few_periods_are_told_as_what_they_are():
    _, record = notes_of(EVERY_EIGHT, 8, 8 * BLOCKS)
    assert (record.series["judged"], record.series["why"]) == (False, "5 periods of 8 steps are too few to tell")
    _, record = notes_of(EVERY_EIGHT, 8, 16 * BLOCKS)
    assert (record.series["judged"], record.verdict) == (True, "steady")
    assert notes_of(EVERY_EIGHT.with_(strategy="wfbp"), 0, 4)[1].series["judged"] is False


# a script -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "blocks", "length"), [(85, 5, 16), (80, 3, 24), (30, 3, 8), (14, 1, 8)])
def test_updates_of_a_script_are_cut_into_whole_periods(count, blocks, length):
    found = _in_blocks(rank_of(0, [], level(count), parts={}, batch=4), count, 8)
    assert (len(found.seconds), len(found.steps)) == (blocks, blocks * length)
    assert found.samples == 4 * length


def test_a_script_with_fewer_updates_than_a_period_is_cut_as_others_are():
    rank = rank_of(0, [], level(10), parts={}, batch=4)
    assert _in_blocks(rank, 10, 8).steps == _in_blocks(rank, 10).steps


# the verdict ----------------------------------------------------------------------------------------


def test_too_few_periods_to_judge_are_not_called_unsteady(tmp_path):
    draw = drawn({"local_sgd": 105.0})
    series = {
        "local_sgd": {"judged": False, "why": "3 periods of 8 steps are too few to tell"},
        "limit": {"judged": True, "why": "it drifts"},
    }

    def measured(cell):
        record, events = draw(cell)
        found = {"verdict": "unsteady", "series": series[cell.label]} if cell.label in series else {}
        return record.model_copy(update=found), events

    lines = told(raced(tmp_path, small(contenders=["allreduce", "local_sgd"]), measured))
    assert [line for line in lines if line.endswith("unsteady")] == ["note: 5 of 5 starts of limit were unsteady"]
    assert "note: whether local_sgd is steady was not judged: 3 periods of 8 steps are too few to tell" in lines


@pytest.mark.parametrize("steps", [16, 15])
def test_measured_steps_that_hold_no_whole_periods_are_told(steps, tmp_path):
    draw = drawn({"local_sgd": 105.0})

    def measured(cell):
        record, events = draw(cell)
        return record.model_copy(update={"series": {"warmup": [], "seconds": [0.1] * steps}}), events

    lines = told(raced(tmp_path, small(contenders=["local_sgd"], rounds=2), measured))
    assert sum("local_sgd hold no whole number of its periods of 8 steps" in line for line in lines) == (steps == 15)


def test_losses_after_different_numbers_of_updates_say_so(tmp_path):
    draw = drawn({"diloco": 105.0})

    def measured(cell):
        record, events = draw(cell)
        steps = 100 if cell.label == "diloco" else 18
        return record.model_copy(update={"series": {"warmup": [], "seconds": [0.1] * steps}}), events

    lines = told(raced(tmp_path, small(contenders=["allreduce", "diloco"]), measured))
    assert any(line.endswith("(training loss 2.000 after 100 updates against 2.000 after 18).") for line in lines)

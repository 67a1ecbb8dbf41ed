"""The duration of a race, measured with a simulated clock."""

import io

import pytest
from rich.console import Console

from paceline.cli.race import QUICK
from paceline.cli.race_view import RaceView, as_json, closing, in_time
from paceline.errors import WrongCommand
from paceline.race.plan import plan
from paceline.race.results.verdict import verdict
from tests.race.fake_race import drawn, raced, small


class Timed:
    """Cells of a fixed duration; the first one takes longer."""

    def __init__(self, seconds, more=0.0):
        self.now, self.seconds, self.more, self.draw = 0.0, seconds, more, drawn()

    def clock(self):
        return self.now

    def __call__(self, cell):
        self.now += self.seconds + (0.0 if self.now else self.more)
        return self.draw(cell)


def quick(**changes):
    return small(**{name: QUICK[name] for name in ("rounds", "reference_rounds", "minutes")}, **changes)


def timed_race(tmp_path, timed, suite=None, **settings):
    return raced(tmp_path, suite or quick(), timed, clock=timed.clock, **settings)


def test_a_quick_race_ends_with_a_verdict_where_a_cell_takes_six_seconds(tmp_path):
    timed = Timed(6.0, more=8.0)
    result = timed_race(tmp_path, timed)
    assert (result.rounds, result.cut_short) == (5, False)
    assert timed.now < 120
    [heat] = result.plan.heats
    assert verdict(result.field_of(heat)).headline.startswith("allreduce is ")
    assert list(in_time(result)) == []


def test_a_race_says_after_its_first_round_how_many_rounds_will_fit(tmp_path):
    shown = io.StringIO()
    with RaceView(Console(file=shown, width=200)) as view:
        result = timed_race(tmp_path, Timed(9.0), watcher=view)
    assert (result.rounds, result.cut_short) == (4, True)
    lines = shown.getvalue().splitlines()
    assert lines[4] == "4 of 5 rounds will fit into 1.9 minutes and give no verdict; --minutes 3 is enough for all"
    assert len(lines) == 12 + 1
    closed = " ".join("\n".join(closing(result)).split())
    assert "4 of 5 rounds fit into 1.9 minutes. try: the same command with --retry" in closed
    assert closed.endswith("or a new race with --minutes 3")
    enough = quick().model_copy(update={"minutes": float(result.minutes_needed)})
    assert timed_race(tmp_path, Timed(9.0), enough).rounds == 5


def test_on_a_terminal_too(tmp_path):
    shown = io.StringIO()
    with RaceView(Console(file=shown, width=200, force_terminal=True)) as view:
        timed_race(tmp_path, Timed(9.0), watcher=view)
    assert "4 of 5 rounds will fit into 1.9 minutes" in shown.getvalue()


def test_a_slow_first_cell_does_not_cost_the_last_round(tmp_path):
    assert timed_race(tmp_path, Timed(6.0, more=15.0)).rounds == 5


def test_without_a_limit_nothing_is_said(tmp_path):
    result = timed_race(tmp_path, Timed(700.0), small())
    assert result.rounds_in_time is None
    assert list(in_time(result)) == []


def test_the_baseline_and_the_limit_may_take_part_in_a_few_rounds(tmp_path):
    result = raced(tmp_path, small(reference_rounds=3))
    [heat] = result.plan.heats
    rounds = {s.label: [record.race["round"] for record in s.records] for s in result.field_of(heat).standings}
    assert rounds["one worker"] == rounds["limit"] == [1, 3, 5]
    assert rounds["ddp"] == rounds["allreduce"] == [1, 2, 3, 4, 5]
    [entry] = [entry for entry in result.entries(heat) if entry.label == "allreduce"]
    assert result.speedup(entry).centre == pytest.approx(100 / 55, rel=0.05)
    assert verdict(result.field_of(heat)).headline.startswith("allreduce is ")
    assert result.plan.notes == ["one worker and limit take part in 3 of 5 rounds"]
    assert len(plan(small(rounds=2, reference_rounds=3)).cells) == 8


def test_scaling_is_told_also_if_the_last_round_has_no_baseline(tmp_path):
    """The baseline runs in rounds 1, 3 and 5; the contender fails in the last of them."""
    measured = drawn()

    def failing(cell):
        if cell.round == 5 and cell.label == "allreduce":
            raise WrongCommand("rank 1 was killed")
        return measured(cell)

    result = raced(tmp_path, small(reference_rounds=3), failing)
    [heat] = as_json(result)["heats"]
    [found] = [entry for entry in heat["contenders"] if entry["name"] == "allreduce"]
    assert found["efficiency"]["speedup"]["value"] > 1

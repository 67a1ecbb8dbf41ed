"""The duration of a race, measured with a simulated clock."""

import pytest

from paceline.cli.race_view import as_json, closing
from paceline.errors import WrongCommand
from paceline.race.plan import plan
from paceline.race.results.verdict import verdict
from tests.race.fake_race import Turns, drawn, raced, small, sure


class Timed:
    """Cells of a fixed duration; the first one takes longer."""

    def __init__(self, seconds, more=0.0):
        self.now, self.seconds, self.more, self.draw = 0.0, seconds, more, drawn()

    def clock(self):
        return self.now

    def __call__(self, cell):
        self.now += self.seconds + (0.0 if self.now else self.more)
        return self.draw(cell)


def timed_race(tmp_path, timed, suite=None, **settings):
    return raced(tmp_path, suite or small(), timed, clock=timed.clock, **settings)


class TimedTurns(Turns):
    """Starts of a fixed duration."""

    def __init__(self, seconds, **settings):
        super().__init__(**settings)
        self.now, self.seconds = 0.0, seconds

    def clock(self):
        return self.now

    def alone(self, cell, on_line):
        self.now += self.seconds
        return super().alone(cell, on_line)

    def together(self, start, seconds, on_line):
        self.now += self.seconds
        return super().together(start, seconds, on_line)


def test_a_race_ends_as_soon_as_every_contender_is_decided(tmp_path):
    timed = TimedTurns(10.0)
    result = timed_race(tmp_path, timed, sure())
    [heat] = result.plan.heats
    assert (result.verdict(heat).end, result.cut_short) == ("wins", False)
    assert timed.now < 120
    assert result.folder.done


def test_a_race_that_is_not_decided_ends_with_its_time_and_says_what_would_settle_it(tmp_path):
    timed = TimedTurns(20.0, speed={"allreduce": 92.0}, noise=0.06)
    result = timed_race(tmp_path, timed, sure())
    [heat] = result.plan.heats
    judged = result.verdict(heat)
    assert (judged.end, result.cut_short, result.folder.done) == ("open", True, False)
    assert 120 < timed.now <= 180
    assert "Not decided yet on 2 workers" in judged.headline
    assert "would settle it" in judged.headline or "more than an hour" in judged.headline
    closed = "\n".join(closing(result))
    assert "go on: the same command measures for up to 3 more minutes" in closed
    # The same command goes on, and nothing that is known is measured again.
    again = timed_race(tmp_path, timed, sure())
    assert again.folder.path == result.folder.path
    assert again.kept == result.done < again.done


def test_minutes_are_of_each_heat(tmp_path):
    timed = TimedTurns(20.0, speed={"allreduce": 91.0}, noise=0.08)
    result = timed_race(tmp_path, timed, sure(models=["mlp", "small_cnn"], minutes=2))
    assert 180 < timed.now <= 240
    assert len(result.late) == 2


def test_a_slow_first_cell_does_not_cost_the_last_round(tmp_path):
    assert timed_race(tmp_path, Timed(6.0, more=15.0), small(minutes=2.3)).rounds == 5


def test_the_baseline_and_the_limit_may_take_part_in_a_few_rounds(tmp_path):
    result = raced(tmp_path, small(reference_rounds=3))
    [heat] = result.plan.heats
    rounds = {s.label: [record.race["round"] for record in s.records] for s in result.field_of(heat).standings}
    assert rounds["one worker"] == rounds["limit"] == [1, 3, 5]
    assert rounds["ddp"] == rounds["allreduce"] == [1, 2, 3, 4, 5]
    [entry] = [entry for entry in result.entries(heat) if entry.label == "allreduce"]
    assert result.speedup(entry).centre == pytest.approx(100 / 55, rel=0.05)
    assert verdict(result.field_of(heat)).headline.startswith("allreduce wins")
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

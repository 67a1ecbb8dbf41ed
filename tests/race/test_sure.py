"""A race in turns, until it is sure: who takes turns, who leaves, who runs isolated, and what a kill leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.race_view import closing
from paceline.errors import Stopped, WorkerFailed
from paceline.race.cells import starts_of
from paceline.race.folder import open_folder
from paceline.race.plan import plan
from paceline.race.race import Nobody, race
from tests.race.fake_race import Turns, raced, sure

PROGRAM = Path(__file__).with_name("fake_race.py")


class Heard(Nobody):
    def __init__(self):
        self.notes, self.lines = [], []

    def noted(self, race, text):
        self.notes.append(text)

    def progress(self, race, start, line):
        self.lines.append(line)


def the_verdict(result):
    [heat] = result.plan.heats
    return result.verdict(heat)


def test_contenders_share_a_start_and_the_baseline_has_its_own():
    [alone, together] = starts_of(plan(sure()).cells_in(1))
    assert [cell.label for cell in alone.cells] == ["one worker"]
    assert {cell.label for cell in together.cells} == {"limit", "ddp", "allreduce"}
    assert (alone.shared, together.shared) == (False, True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("parameter_server", "it has dedicated servers"),
        ("rule=atc(every=32)", "it repeats itself every 32 steps"),
        ("one: allreduce,threads=7", "its threads would change the others' processes"),
    ],
)
def test_what_cannot_share_processes_runs_isolated_and_says_so(text, why):
    made = plan(sure(contenders=["allreduce", text]))
    [alone] = [entry for entry in made.entries if entry.alone and entry.label != "one worker"]
    assert alone.alone == why
    assert any(note.endswith(f"runs isolated, in processes of its own: {why}") for note in made.notes)
    assert len(starts_of(made.cells_in(1))) == 3


def test_with_the_flag_every_contender_runs_isolated():
    made = plan(sure(isolated=True))
    assert len(starts_of(made.cells_in(1))) == 4
    assert not any("isolated" in note for note in made.notes)


def test_records_name_their_turn_mates_and_what_their_intervals_allow_for(tmp_path):
    result = raced(tmp_path, sure(contenders=["allreduce", "wfbp"]), Turns({"wfbp": 80.0}))
    ours = [record for record in result.records.values() if record.race["label"] == "allreduce"]
    assert sorted(ours[0].race["mates"]) == ["ddp", "limit", "wfbp"]
    assert (ours[0].race["shared"], ours[0].race["pairs"], ours[0].race["margin"]) == (True, 3, 3.0)
    assert ours[0].race["seconds"] >= 0
    assert ours[0].efficiency["baseline"]


def test_a_contender_that_is_surely_beaten_leaves_the_race(tmp_path):
    measured = Turns({"wfbp": 40.0, "ddp": 97.0}, noise=0.02)
    result = raced(tmp_path, sure(contenders=["allreduce", "wfbp"]), measured)
    [heat] = result.plan.heats
    counts = {label: len(result.standing(heat, label).records) for label in ("ddp", "allreduce", "wfbp", "limit")}
    assert counts["wfbp"] < counts["ddp"] == counts["allreduce"]
    assert counts["limit"] == 3  # nothing is decided about it
    assert the_verdict(result).beaten[-1] == "wfbp"


def test_equal_contenders_end_level(tmp_path):
    result = raced(tmp_path, sure(), Turns({"allreduce": 90.0}, noise=0.005))
    judged = the_verdict(result)
    assert (judged.end, set(judged.ties)) == ("level", {"ddp", "allreduce"})
    assert "are level on 2 workers: the difference is below 3 % (" in judged.headline


def test_a_contender_that_fails_is_isolated_and_the_start_repeated_without_it(tmp_path):
    measured, heard = Turns({"wfbp": 80.0}, failing={"wfbp"}), Heard()
    result = raced(tmp_path, sure(contenders=["allreduce", "wfbp"]), measured, watcher=heard)
    first, second, third = measured.starts[1:4]
    assert set(first) == {"limit", "ddp", "allreduce", "wfbp"}
    assert {second, third} == {("wfbp",), tuple(label for label in first if label != "wfbp")}
    assert heard.notes == ["wfbp from now on in isolated starts: wfbp ran out of luck"]
    # It fails alone, too: it is told once, and it starts no more.
    assert sum("wfbp" in start for start in measured.starts) == 2
    assert [cell.label for cell, _ in result.failures] == ["wfbp"]
    assert "\n".join(closing(result)).count("ran out of luck") == 1
    assert the_verdict(result).end == "wins"


def test_copies_that_do_not_fit_go_to_isolated_starts_with_one_line(tmp_path):
    measured, heard = Turns(room=False), Heard()
    result = raced(tmp_path, sure(rounds=3), measured, watcher=heard)
    assert len(heard.notes) == 1
    assert "in isolated starts: 4 contenders in each of 2 processes: 9.9 GB are missing" in heard.notes[0]
    assert sum(len(start) > 1 for start in measured.starts) == 1
    assert len(result.records) == 12
    assert not any(record.race["shared"] for record in result.records.values())
    assert all("9.9 GB" in r.race["alone"] for r in result.records.values() if r.race["label"] == "allreduce")


def test_a_contender_with_dedicated_servers_races_in_the_same_table_marked(tmp_path):
    suite = sure(contenders=["allreduce", "parameter_server"], minutes=0.01)
    result = raced(tmp_path, suite, Turns({"parameter_server": 70.0}))
    lines = list(closing(result))
    assert any(line.startswith("parameter_server +  ") for line in lines)
    assert any(line.startswith("allreduce  ") for line in lines)
    assert "+ ran isolated, in processes of its own: its ratios to the others are not paired" in lines
    [heat] = result.plan.heats
    servers, ours = result.standing(heat, "parameter_server"), result.standing(heat, "allreduce")
    assert servers.paired(ours) == []
    assert max(map(len, lines)) <= 80


def test_identical_failures_stop_the_race_and_are_told_once(tmp_path):
    class Broken(Turns):
        def alone(self, cell, on_line):
            self.starts.append((cell.label,))
            raise WorkerFailed(f"rank 1 (pid {len(self.starts)}): no such module")

    measured = Broken()
    result = raced(tmp_path, sure(isolated=True), measured)
    assert len(measured.starts) == 4
    text = " ".join(" ".join(closing(result)).split())
    assert text.count("no such module") == 1
    assert "(3 more failed alike)" in text
    assert result.folder.done


def test_the_memory_of_a_contender_is_that_of_a_start_of_its_own_once(tmp_path):
    measured, heard = Turns(failing={"wfbp"}), Heard()
    result = raced(tmp_path, sure(contenders=["allreduce", "wfbp"]), measured, watcher=heard)
    assert sorted(measured.weighed) == ["allreduce", "ddp", "limit", "wfbp"]
    assert "memory of allreduce" in heard.lines
    [heat] = result.plan.heats
    first, second, *_ = result.standing(heat, "allreduce").records
    assert (first.race["round"], second.race["round"]) == (1, 2)
    assert first.resources["alone"] == {"pss_peak": [9_000_000] * 2, "rss_peak": [9_000_000] * 2}
    assert "alone" not in second.resources
    assert result.standing(heat, "ddp").first.resources["alone"]["pss_peak"] == [3_000_000] * 2
    assert "alone" not in result.standing(*result.plan.baseline_of(heat)).first.resources  # it is alone already


def test_memory_uses_none_of_the_minutes(tmp_path):
    class Slow(Turns):
        def memory(self, cell):
            self.now += 1000.0
            return super().memory(cell)

        now = 0.0

    measured = Slow(noise=0.5)
    result = raced(tmp_path, sure(minutes=1.0, rounds=2), measured, clock=lambda: measured.now)
    assert measured.now == 3000.0
    assert max(result.elapsed.values()) == 0.0


def test_progress_inside_a_start_is_passed_on(tmp_path):
    heard = Heard()
    raced(tmp_path, sure(), Turns(), watcher=heard)
    assert "turn 1/8" in heard.lines


def test_a_race_that_is_killed_in_a_start_ends_as_if_it_had_not_been(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path / "killed"), "0.4", "turns"]
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    for number in (1, 2, 3):
        assert process.stdout.readline().strip() == f"start {number}"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    suite, measured = sure(), Turns(noise=0.05)
    folder, known = open_folder(plan(suite), tmp_path / "killed")
    assert known
    torn = {path.name.removesuffix(".started") for path in folder.path.glob("*.started")}
    assert {name[-6:] for name in torn} == {"round3"}
    before = {path: path.read_bytes() for path in folder.path.glob("*.json")}
    assert len(before) == 2 * 3 + 2  # limit, ddp and allreduce twice, with the baseline
    result = race(plan(suite), folder, measured=measured)
    assert {path: path.read_bytes() for path in before} == before
    assert len(measured.starts[0]) == 3
    assert not list(folder.path.glob("*.started"))

    undisturbed = raced(tmp_path / "whole", suite, Turns(noise=0.05))
    assert the_verdict(result).headline == the_verdict(undisturbed).headline
    assert result.rounds == undisturbed.rounds > 3


def test_a_kill_between_the_records_of_a_start_repeats_the_start(tmp_path):
    result = raced(tmp_path, sure(rounds=2), Turns())
    (result.folder.path / "race.done").unlink()
    [_, start] = starts_of(result.plan.cells_in(1))
    result.folder.begin(start)
    result.folder.record_path(start.cells[1]).unlink()
    measured = Turns()
    again = race(result.plan, result.folder, measured=measured)
    assert [len(found) for found in measured.starts] == [3]
    assert len(list(result.folder.path.glob("*.torn-*"))) == 2
    assert (again.kept, again.done) == (5, 8)
    # A kill after the last record leaves marks only: nothing is repeated.
    (result.folder.path / "race.done").unlink()
    result.folder.begin(start)
    untouched = Turns()
    race(result.plan, result.folder, measured=untouched)
    assert untouched.starts == []


def test_a_race_that_is_stopped_goes_on_where_it_was(tmp_path):
    class Stops(Turns):
        def together(self, start, seconds, on_line):
            if start.round == 3:
                raise Stopped(signal.SIGINT)
            return super().together(start, seconds, on_line)

    made = plan(sure())
    with pytest.raises(Stopped):
        race(made, open_folder(made, tmp_path)[0], measured=Stops())
    again = race(made, open_folder(made, tmp_path)[0], measured=Turns())
    assert again.kept >= 6
    assert the_verdict(again).headline == the_verdict(raced(tmp_path / "whole", sure(), Turns())).headline

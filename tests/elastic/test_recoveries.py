"""Seconds from an incident to the next commit, and a short campaign of random faults."""

import os
import subprocess
import sys

import pytest

from paceline.elastic.journal import Journal, Row
from paceline.elastic.progress import Progress, rates, step_seconds
from paceline.elastic.recoveries import Recoveries, line_of, summary_of
from tests.elastic.chaos import table


@pytest.fixture
def journal(tmp_path):
    made = Journal(tmp_path / "journal.db")
    yield made
    made.close()


def test_an_incident_ends_with_a_commit_of_a_later_generation(journal):
    recoveries, line = Recoveries(), {"what": "died", "member": "b", "rank": 1, "generation": 3}
    recoveries.begin(journal.note(line), line, 10.0)
    recoveries.end(journal, 3, 10.1)  # a commit of the same generation was under way
    assert "seconds" not in next(journal.incidents())
    assert summary_of(journal.incidents()) == "incidents: 1 died"
    recoveries.end(journal, 4, 10.25)
    recoveries.end(journal, 4, 11.0)
    assert next(journal.incidents())["seconds"] == 0.25
    text = "incidents: 1 died; seconds to the next commit: median 0.25, longest 0.25"
    assert summary_of(journal.incidents()) == text


def test_an_incident_has_its_phases_and_the_work_that_was_lost(journal):
    recoveries, line = Recoveries(), {"what": "silent", "member": "b", "rank": 1, "generation": 3, "silence": 2.0}
    recoveries.begin(journal.note(line), line, 10.0)
    recoveries.left(3, "a", 2, 10.0)
    recoveries.left(3, "c", 1, 10.1)
    recoveries.left(4, "d", 9, 10.1)  # another generation
    recoveries.formed(4, counts=False, now=10.2)
    recoveries.end(journal, 4, 10.25)
    seen = next(journal.incidents())
    assert (seen["detect"], seen["reconfigure"], seen["commit"], seen["seconds"]) == (2.0, 0.2, 0.05, 2.25)
    assert seen["shards"] == 3
    words = line_of(seen)
    assert "silent: b (generation 3, rank 1); members waited for it and saw no progress; 2.25 s" in words
    assert "2.000 detect, 0.200 reconfigure, 0.050 commit), 3 shards computed again" in words


def test_a_step_that_counts_loses_no_work(journal):
    recoveries, line = Recoveries(), {"what": "died", "member": "b", "generation": 3}
    recoveries.begin(journal.note(line), line, 10.0)
    recoveries.left(3, "a", 2, 10.0)
    recoveries.formed(4, counts=True, now=10.2)
    recoveries.end(journal, 4, 10.25)
    assert next(journal.incidents())["shards"] == 0


def test_a_member_that_was_cut_off_and_is_dead_died(journal):
    recoveries, line = Recoveries(), {"what": "cut off", "member": "b", "generation": 3}
    recoveries.begin(journal.note(line), line, 10.0)
    assert recoveries.knows("b", 3)
    assert not recoveries.knows("b", 4)
    recoveries.died(journal, "c")
    assert next(journal.incidents())["what"] == "cut off"
    recoveries.died(journal, "b")
    assert next(journal.incidents())["what"] == "died"


def test_progress_is_thinned_and_goes_on_after_a_restart(journal):
    now = [100.0]
    progress = Progress(journal, lambda: now[0])
    for step in range(1, 101):
        now[0] += 0.05
        for _ in range(2):
            progress.tell(1, step, 2, {"compute": 0.03, "update": "nonsense", "data": float("nan")})
    rows = journal.history()
    assert 15 <= len(rows) <= 21
    assert Progress(journal, lambda: now[0])._parts["compute"] == pytest.approx(rows[-1].parts["compute"])
    assert rows[-1].parts["compute"] / rows[-1].parts["steps"] == pytest.approx(0.03)
    assert all(rate == pytest.approx(20.0, rel=0.01) and members == 2 for _, rate, members in rates(rows))
    assert step_seconds(rows) == [pytest.approx(0.05)] * (len(rows) - 1)
    assert rates([Row(0.0, 1, 9, 1, {}), Row(2.0, 2, 3, 1, {})]) == [(2.0, 0.0, 1)]  # a rollback


def test_a_new_generation_alone_is_no_incident(journal):
    recoveries, line = Recoveries(), {"what": "generation", "generation": 3}
    recoveries.begin(journal.note(line), line, 10.0)
    recoveries.end(journal, 4, 11.0)
    assert summary_of(journal.incidents()) == ""
    assert "seconds" not in next(journal.incidents())


def test_the_table_leaves_out_what_was_not_timed():
    lines = table([("kill", 0.1), ("kill", 0.3), ("kill", None), ("join", 0.2)])
    assert lines[1].split() == ["kill", "3", "2", "0.300", "0.300", "0.300"]
    assert lines[2].split() == ["leave", "0", "0"]


def campaign(*flags):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.elastic.chaos", "--rounds", "1", "--seed", "3", "--epochs", "4", *flags]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--fast",)], ids=["deterministic", "fast"])
def test_every_oracle_holds_under_random_faults(flags):
    done = campaign(*flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all oracles hold" in done.stdout
    assert "round 0: 0 faults" not in done.stdout


@pytest.mark.slow
def test_the_campaign_notices_steps_that_are_applied_without_a_verdict():
    done = campaign("--careless")
    assert done.returncode == 1, done.stdout
    assert "counts" in done.stdout

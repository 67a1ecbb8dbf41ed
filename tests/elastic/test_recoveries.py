"""Seconds from an incident to the next commit, and a short campaign of random faults."""

import os
import subprocess
import sys

import pytest

from paceline.elastic.journal import Journal
from paceline.elastic.recoveries import Recoveries, summary_of
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

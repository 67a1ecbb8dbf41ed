"""Seconds from an incident to the next commit, and a short campaign of random faults."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.comm.faults import STEP_POINTS
from paceline.elastic.journal import Journal, Row
from paceline.elastic.progress import Progress, rates, step_seconds
from paceline.elastic.recoveries import Recoveries, line_of, summary_of
from tests.elastic.chaos import key, plan, problems_of, read, summary, table, write_page
from tests.elastic.rounds import KINDS

ROOT = Path(__file__).parents[2]
RECORDS, PAGE = ROOT / "docs/records/chaos/rounds.jsonl", ROOT / "docs/concepts/membership.md"
KILLS = [RECORDS.with_name(f"kills-{mode}.json") for mode in ("fast", "deterministic")]
ORACLES = ("every step once", "every sample once per epoch", "counts of all epochs", "same bits")


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


def record(**changes):
    faults = [{"kind": "kill", "seconds": seconds} for seconds in (0.1, 0.3, None)]
    whole = {"kind": "random", "comm": "shm", "mode": "fast", "seed": 1, "when": "", "took": 36.0, "others": 0.25}
    return {**whole, "wrong": [], "steps": 1000, "generations": 4, "goodput": 0.9, "faults": faults, **changes}


def test_the_table_leaves_out_what_was_not_timed():
    lines = table([record(), record(faults=[{"kind": "join", "seconds": 0.2}])])
    assert lines[2] == "| kill | 3 | 2 | 0.30 | 0.30 | 0.30 |"
    assert lines[4] == "| leave | 0 | 0 |  |  |  |"
    assert lines[5] == "| join | 1 | 1 | 0.20 | 0.20 | 0.20 |"


def test_a_summary_says_in_how_many_jobs_the_oracles_hold():
    assert "all oracles hold in all 2 jobs." in summary([record(), record()])[0]
    assert "all oracles hold in 1 of 2 jobs." in summary([record(), record(wrong=["counts"])])[0]


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, []),
        ({"ledger": False}, ["ledger"]),
        ({"counts": False}, ["counts"]),
        ({"replicas": False}, ["replicas"]),
        ({"codes": [0, 1]}, ["exit codes"]),
        ({"hash": ["b"]}, ["same bits"]),
        ({"failed": "TimeoutError"}, ["TimeoutError"]),
        ({"wrong": ["evicted"]}, ["evicted"]),
    ],
)
def test_a_round_names_the_oracles_that_it_does_not_satisfy(change, wrong):
    class Same:
        def after(self, steps):
            return "a"

    good = {"ledger": True, "counts": True, "replicas": True, "codes": [0], "hash": ["a"], "steps": 5, "wrong": []}
    assert problems_of({**good, **change}, Same()) == wrong


def test_the_page_says_what_the_records_of_the_campaign_say(tmp_path):
    records = read(RECORDS)
    assert set(map(key, records)) <= set(plan())
    assert len(set(map(key, records))) == len(records)
    assert [one for one in records if one["wrong"]] == []
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    write_page(page, records)
    assert page.read_text() == PAGE.read_text()
    write_page(page, records[:-1])
    assert page.read_text() != PAGE.read_text()


@pytest.fixture
def recovery(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("recovery")


def test_the_page_says_what_the_records_of_kills_on_a_quiet_machine_say(tmp_path, recovery):
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    recovery.write_page(page, KILLS)
    assert page.read_text() == PAGE.read_text()
    recovery.write_page(page, KILLS[:1])
    assert page.read_text() != PAGE.read_text()
    for path in KILLS:
        (found,) = json.loads(path.read_text())
        assert len(found["kills"]) >= 60
        assert {kill["point"] for kill in found["kills"]} == {"any", *STEP_POINTS}
        assert {kill["rank"] for kill in found["kills"]} == {0, 1, 2, 3}
        assert all(kill["survivors"] for kill in found["kills"])
        assert found["oracles"] == dict.fromkeys(ORACLES, True)


def good_job(recovery, epochs=2):
    """Return a job of which every step was committed once, by two members with the same bits."""
    job = recovery.Job.__new__(recovery.Job)
    steps, width = 32, recovery.SAMPLES // 32
    job.commits = [recovery.Commit(0.0, k + 1, 1, 2, k, rank, 9) for k in range(epochs * steps + 2) for rank in (0, 1)]
    job.shards = {(k + 1, 1): list(range(k % steps * width, (k % steps + 1) * width)) for k in range(epochs * steps)}
    job.uses = [0.0] * epochs
    return job


def test_the_oracles_of_kills_notice_every_wrong(recovery):
    assert recovery.oracles(good_job(recovery)) == dict.fromkeys(ORACLES, True)
    job = good_job(recovery)
    job.commits[10] = job.commits[10]._replace(generation=2)
    assert not recovery.oracles(job)["every step once"]
    job = good_job(recovery)
    job.shards[7, 1][3] += 1
    assert not recovery.oracles(job)["every sample once per epoch"]
    job = good_job(recovery)
    job.uses[1] = 1.0
    assert not recovery.oracles(job)["counts of all epochs"]
    job = good_job(recovery)
    job.commits[10] = job.commits[10]._replace(bits=77)
    assert not recovery.oracles(job)["same bits"]


def test_a_hash_of_the_state_notices_one_changed_number(recovery):
    tensors = [torch.arange(12.0), torch.ones(3)]
    digest = recovery.Digest()
    seen = {digest.of(tensors)}
    for tensor in tensors:
        for place in range(len(tensor)):
            changed = [one.clone() for one in tensors]
            changed[0 if tensor is tensors[0] else 1][place] += 0.5
            seen.add(digest.of(changed))
    assert len(seen) == 1 + 12 + 3
    assert digest.of([tensor.clone() for tensor in tensors]) in seen


def test_every_kind_of_round_is_in_the_plan():
    assert {kind for kind, *_ in plan()} == set(KINDS)
    assert len(set(plan())) == len(plan())


def campaign(*flags):
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.elastic.chaos", "--kind", "random", "--seed", "1", *flags]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["deterministic", "fast"])
@pytest.mark.parametrize("comm", ["shm", "tcp"])
def test_every_oracle_holds_under_random_faults(comm, mode):
    done = campaign("--comm", comm, "--mode", mode)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all oracles hold" in done.stdout
    assert ": 0 faults" not in done.stdout


@pytest.mark.slow
def test_the_campaign_notices_steps_that_are_applied_without_a_verdict():
    done = campaign("--careless", "--comm", "shm", "--mode", "deterministic")
    assert done.returncode == 1, done.stdout
    assert "counts" in done.stdout

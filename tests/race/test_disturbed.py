"""An elastic run of a table: a worker is killed on the way, another one joins, and the ledger counts samples."""

import subprocess
import sys

import pytest

from paceline.errors import WorkerFailed
from paceline.measure.record.record import read
from paceline.race import disturbed as job
from paceline.race import reproduce as tables
from paceline.race.published import elasticdl
from paceline.race.reproduce import reproduce
from paceline.run.run import Run
from tests.race.published.kept import kept

SMALL = {"model": "mlp", "batch_size": 8, "threads": 1, "warmup": 0, "repeats": 10}


def small(least, **changes):
    return Run(workers=2, membership=f"elastic(min={least}, max=2)", restart="1", **{**SMALL, "steps": 30, **changes})


def test_a_run_is_disturbed_if_its_group_may_shrink():
    assert job.is_disturbed(small(1))
    assert not job.is_disturbed(small(2))
    assert not job.is_elastic(Run(workers=2, **SMALL))
    assert job.goal_of(Run(workers=2, steps=5, repeats=6, warmup=2)) == 32


def test_the_last_member_is_killed_after_a_part_of_the_steps(tmp_path):
    with subprocess.Popen(["sleep", "60"]) as victim, subprocess.Popen(["sleep", "60"]) as launcher:
        states = [None, *({"members": ["0-1-1", f"1-{victim.pid}-1"], "steps": steps} for steps in (0, 24, 25))]
        asked = iter(states)
        assert job._strike(launcher, tmp_path, 100, lambda folder: next(asked)) == victim.pid
        assert victim.wait() == -9
        launcher.kill()
    assert next(asked, "all were asked") == "all were asked"


def test_nobody_is_killed_in_a_job_that_has_ended(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as launcher:
        launcher.wait()
        assert job._strike(launcher, tmp_path, 100, lambda folder: {"members": ["0-1-1"], "steps": 99}) == 0


def test_a_job_that_fails_is_reported_with_its_last_line(tmp_path):
    with pytest.raises(WorkerFailed, match=r"exit code [12].*mlpp"):
        job.keep_elastic(small(1, model="mlpp"), tmp_path / "runs")
    assert not list(tmp_path.glob("runs/*.json"))


@pytest.mark.multi
@pytest.mark.slow
def test_a_killed_worker_costs_no_sample_and_the_next_one_joins(tmp_path):
    rough = job.keep_elastic(small(1, steps=60), tmp_path)
    assert rough.elastic == {**rough.elastic, "killed": 1, "joined": 1, "lost": 0, "repeated": 0}
    assert rough.elastic["steps"] > 150, "the worker was killed on the way"
    assert [line["what"] for line in rough.incidents] == ["died"]
    assert rough.incidents[0]["seconds"] > 0
    assert not rough.notes
    assert read(tmp_path / f"{rough.id}.json").run == small(1, steps=60)


@pytest.mark.multi
@pytest.mark.slow
def test_an_undisturbed_job_has_no_incident(tmp_path):
    calm = job.keep_elastic(small(2), tmp_path)
    assert calm.elastic == {**calm.elastic, "killed": 0, "joined": 0, "lost": 0, "repeated": 0}
    assert not calm.incidents


@pytest.mark.multi
@pytest.mark.slow
def test_a_job_that_ends_before_anybody_joins_is_no_result(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_strike", lambda *_: 0)
    with pytest.raises(WorkerFailed, match="no worker was killed before the run of 300 steps ended"):
        job.keep_elastic(small(1), tmp_path)


# the tables ---------------------------------------------------------------------------------------------


def elastic_runs(folder):
    return [run for run in reproduce("elasticdl", folder).missing() if job.is_elastic(run)]


def test_every_model_has_a_table_in_which_workers_come_and_go(tmp_path):
    runs = elastic_runs(tmp_path)
    assert [job.is_disturbed(run) for run in runs] == [False, True] * len(elasticdl.MODELS)
    assert {run.workers for run in runs} == {3}


def test_the_table_has_the_next_commit_and_the_samples_that_were_lost(tmp_path):
    calm, rough = elastic_runs(tmp_path)[:2]
    kept(calm, tmp_path, elastic={"lost": 0, "repeated": 0}, task={"task": 100.0})
    died = {"what": "died", "count": 1, "seconds": 0.25}
    kept(rough, tmp_path, 2, elastic={"lost": 0, "repeated": 0}, task={"task": 110.0}, incidents=[died])
    [sheet] = [
        s for s in reproduce("elasticdl", tmp_path).sheets if s.sheet.title == elasticdl._elastic_title("resnet50")
    ]
    cell = sheet.find(elasticdl.ROUGH)
    seen = {figure.name: cell.value(figure) for figure in cell.row.figures}
    assert (seen["task s"], seen["commit s"], seen["lost"], seen["repeated"]) == (110.0, 0.25, 0.0, 0.0)
    assert sheet.find(elasticdl.CALM).value(cell.row.figures[-3]) is None
    assert cell.row.base == elasticdl.CALM


def test_elastic_rows_are_measured_as_jobs_of_their_own(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(tables, "keep_elastic", lambda run, runs, race: asked.append((run, race["name"])))
    monkeypatch.setattr(tables, "keep", lambda run, *_, **__: asked.append((run, "fixed")))
    assert tables.measure_missing("elasticdl", tmp_path, quick=True) == ([], 0)
    elastic = [run for run, name in asked if name == "reproduce elasticdl"]
    assert elastic == elastic_runs(tmp_path), "their steps are not shortened"
    assert all(run.membership is None for run, name in asked if name == "fixed")

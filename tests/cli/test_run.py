"""`paceline run` checks a run once, and its command and record name what the user chose."""

import pytest

import paceline.run.compose.compose as composing
from paceline.cli import main
from paceline.cli.run import check_target
from paceline.cluster.launchers.local import Local
from paceline.errors import WorkloadError
from paceline.measure.record.store import open_store
from paceline.race import keep
from paceline.run.run import Run
from tests.report.samples import record


@pytest.fixture
def measured(monkeypatch):
    """Runs that are not carried out; their record is made up."""

    def measure(run, *_, **__):
        return record(workers=run.workers), []

    monkeypatch.setattr(keep, "measure", measure)


def test_what_the_user_chose_is_named_even_where_it_is_the_default(measured, tmp_path, capsys):
    command = "run -np 2 --model mlp --precision fp32 --seed 0"
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--runs", str(tmp_path)])
    out = capsys.readouterr()
    assert (end.value.code or 0, out.err) == (0, "")
    assert f"paceline {command}\n" in out.out
    [stored] = open_store([tmp_path]).records
    assert stored.record.text == f"paceline {command}"


def test_a_run_is_composed_once_before_workers_start(monkeypatch, tmp_path):
    calls, compose = [], composing.compose

    def counted(run, *args, **kwargs):
        calls.append(run)
        return compose(run, *args, **kwargs)

    def start(*_, **__):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(composing, "compose", counted)
    monkeypatch.setattr(Local, "start", start)
    with pytest.raises(AssertionError, match="a worker was started"):
        main(["run", "-np", "2", "--model", "mlp", "--runs", str(tmp_path)])
    assert len(calls) == 1


def test_a_target_that_was_missed_is_an_error():
    run, grade = Run(target=0.5, epochs=2), {"epoch": 1, "loss": 1.0, "samples": 10}
    check_target(Run(epochs=1), record())
    check_target(run, record(accuracy=[{**grade, "value": 0.4}, {**grade, "value": 0.5}]))
    with pytest.raises(WorkloadError, match=r"target 0.5 was not reached: the last .* 0.3000, the best 0.4000"):
        check_target(run, record(accuracy=[{**grade, "value": 0.4}, {**grade, "value": 0.3}]))
    with pytest.raises(WorkloadError, match="has no test part"):
        check_target(run, record())

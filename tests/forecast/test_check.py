"""The check that writes a certificate: which runs count, what an interrupted check leaves, and how it goes on."""

import pytest

from paceline.forecast import check as job
from paceline.forecast.cases import lab_cases, real_cases
from paceline.forecast.certificate import FILE, read_certificate
from tests.report.samples import record

STOP = 6  # runs until the check is interrupted


def made(run, spread=0.01):
    """Return a record of a run whose repeats differ a little."""
    rate = 40.0 + 3 * len(run.strategy)
    total = {"mean": rate, "median": rate, "low": 0.5 * rate, "high": 1.5 * rate, "confidence": 0.95, "error": 1.0}
    repeats = [rate * (1 + spread * side) for side in (-1, 0, 1, 0)]
    figures = {"rate": {"total": {**total, "repeats": repeats}, "per_worker": [rate]}, "run": run}
    return record(run.strategy, run.workers).model_copy(update=figures)


@pytest.fixture
def runs(monkeypatch):
    """Nothing is run; the runs that were wanted are returned in their order."""
    wanted = []

    def measure(run, on_line):
        wanted.append(run)
        return made(run), []

    monkeypatch.setattr(job, "measure", measure)
    monkeypatch.setattr(job, "fit", lambda guess, forecasts, measured: dict(guess))
    return wanted


def test_a_width_is_that_of_repeats_because_single_steps_may_alternate():
    [case] = lab_cases(job.Path("x"), quick=True)[:1]
    assert job.width_of(made(case.run)) == pytest.approx(3.182 * 0.00816 / 2, rel=0.01)


def test_unsteady_runs_do_not_calibrate_while_others_are_left():
    cases = lab_cases(job.Path("x"), quick=True)[:3]
    wide = [job.Seen(case, made(case.run, spread=0.2 * (k == 2)), 0.0, 1) for k, case in enumerate(cases)]
    assert [one.case for one in job.steady(wide)] == cases[:2]
    assert job.steady(wide[2:]) == wide[2:]


def test_a_check_that_was_stopped_leaves_its_rows_and_goes_on(tmp_path, runs, monkeypatch):
    def stopping(line):
        if len(runs) == STOP and "forecast" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.check(tmp_path, quick=True, tell=stopping)
    before = read_certificate(tmp_path / FILE)
    assert [row.name for row in before.rows] == [case.name for case in lab_cases(tmp_path, quick=True) if case.held][:2]
    whole = job.check(tmp_path, quick=True, tell=lambda line: None)
    cases = [*lab_cases(tmp_path, quick=True), *real_cases(quick=True)]
    assert len(runs) == len(cases), "nothing is measured twice"
    assert {row.name for row in whole.rows if row.kind == "lab"} == {
        c.name for c in cases if c.held and c.kind == "lab"
    }
    assert read_certificate(tmp_path / FILE).rows == whole.rows

import pytest

from paceline.errors import WrongCommand
from paceline.jobs import rerun as job
from tests.report.samples import record


def test_a_rerun_keeps_the_new_record_and_compares_it(tmp_path, monkeypatch):
    old = record()
    fresh = record(start=2)
    monkeypatch.setattr("paceline.jobs.keep.measure", lambda *_, **__: (fresh, [[[1.0, "data", 0, -1, 0]]]))
    stored, found = job.rerun(old, tmp_path)
    assert stored.path == tmp_path / f"{fresh.id}.json"
    assert stored.events_path is not None
    assert (found.first.id, found.second.id) == (fresh.id, old.id)
    assert found.differences == ()


def test_a_forecast_cannot_be_run_again(tmp_path):
    with pytest.raises(WrongCommand, match="is a forecast: nothing was run"):
        job.rerun(record(kind="forecast"), tmp_path)

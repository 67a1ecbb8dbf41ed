import pytest

from paceline.cli import main
from paceline.errors import WrongCommand
from paceline.measure.record.record import read
from paceline.race import rerun as job
from tests.report.samples import record


def test_a_rerun_keeps_the_new_record_and_compares_it(tmp_path, monkeypatch):
    old = record()
    fresh = record(start=2)
    monkeypatch.setattr("paceline.race.keep.measure", lambda *_, **__: (fresh, [[[1.0, "data", 0, -1, 0]]]))
    stored, found = job.rerun(old, tmp_path)
    assert stored.path == tmp_path / f"{fresh.id}.json"
    assert stored.events_path is not None
    assert ([r.id for r in found.first], [r.id for r in found.second]) == ([fresh.id], [old.id])
    assert found.differs is None
    assert found.differences == ()


def test_a_forecast_cannot_be_run_again(tmp_path):
    with pytest.raises(WrongCommand, match="is a forecast: nothing was run"):
        job.rerun(record(kind="forecast"), tmp_path)


def test_a_script_cannot_be_run_again_and_its_command_is_told(tmp_path):
    words = "-- python 'my train.py'"
    old = record(text=f"paceline run -np 2 --strategy allreduce --threads 1 {words}")
    with pytest.raises(WrongCommand) as refused:
        job.rerun(old, tmp_path)
    assert (refused.value.what, refused.value.remedy) == (f"record {old.id} is of a script", old.text)
    with pytest.raises(WrongCommand) as refused:
        job.rerun(record("ddp", text=f"paceline run -np 2 --strategy ddp {words}"), tmp_path)
    assert refused.value.remedy == f"paceline race -np 2 {words}"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_failed_is_done_again_and_kept_without_a_comparison(tmp_path, monkeypatch, capsys):
    fresh = record(start=2)
    monkeypatch.setattr("paceline.race.keep.measure", lambda *_, **__: (fresh, []))
    old = record(verdict="failed", failure="lost", rate={}, step={}, breakdown={})
    (tmp_path / f"{old.id}.json").write_text(old.to_json())
    with pytest.raises(SystemExit) as end:
        main(["rerun", old.id, "--runs", str(tmp_path), "--json", str(tmp_path / "new.json")])
    told = capsys.readouterr()
    assert not end.value.code, told.err
    assert f"record: {tmp_path / fresh.id}.json" in told.out
    assert f"nothing to compare with: the run of record {old.id} failed" in told.out
    assert read(tmp_path / "new.json").id == fresh.id
    assert read(tmp_path / f"{fresh.id}.json").verdict == "steady"

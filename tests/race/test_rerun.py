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


def test_an_elastic_job_cannot_be_run_again(tmp_path):
    with pytest.raises(WrongCommand, match="is of an elastic job: its members came and went"):
        job.rerun(record(elastic={"generations": 1}), tmp_path)


def test_a_script_is_started_again_with_the_settings_that_it_had(tmp_path, monkeypatch):
    text = "paceline run -np 2 --strategy allreduce --comm auto --threads 1 -- python 'my train.py'"
    old, fresh, seen = record(text=text), record(start=2, text=text), {}

    def launched(argv, *, keep, **given):
        seen.update(given, argv=argv)
        keep(fresh)
        return ""

    monkeypatch.setattr("paceline.race.rerun.launch_measured", launched)
    stored, found = job.rerun(old, tmp_path / "runs")
    assert seen["argv"] == ["python", "my train.py"]
    assert seen["choices"] == {"strategy": "allreduce", "comm": "auto"}
    assert (seen["run"].workers, seen["run"].threads, seen["servers"]) == (2, 1, 0)
    assert read(stored.path).id == fresh.id == found.first[0].id
    assert found.differences == ()


def test_a_script_that_leaves_no_record_the_second_time_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.race.rerun.launch_measured", lambda *_, **__: "no rank has made an update")
    old = record(text="paceline run -np 2 -- python x.py")
    with pytest.raises(WrongCommand, match="is not repeated: no rank has made an update") as refused:
        job.rerun(old, tmp_path)
    assert refused.value.remedy == old.text


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

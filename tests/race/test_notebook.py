"""Races and records from Python."""

import sys

import pytest

import paceline
from paceline.errors import MissingPackage, Refused, WrongCommand
from tests.race.fake_race import Turns


def raced(tmp_path, **settings):
    wanted = {"model": "mlp", "strategies": ["allreduce", "wfbp"], "runs": tmp_path, **settings}
    return paceline.race(**wanted, measured=Turns({"wfbp": 80.0}))


def test_a_race_from_python_gives_the_verdict_of_the_command(tmp_path):
    result = raced(tmp_path)
    [judged] = result.verdicts
    assert (judged.end, judged.winner) == ("wins", "allreduce")
    text = repr(result)
    assert text.splitlines()[0] == "mlp, 2 workers, batch 16"
    assert text.splitlines()[-1] == judged.headline
    assert max(map(len, text.splitlines())) <= 100
    assert result.folder.parent == tmp_path
    assert result.ratio("allreduce", "wfbp").low > 1


def test_a_race_from_python_prints_a_line_per_start_unless_it_is_silent(tmp_path, capsys):
    raced(tmp_path / "a", rounds=3)
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.lstrip().startswith("round ")]
    assert printed.out == ""
    assert {line.split()[1] for line in lines} == {"1/3", "2/3", "3/3"}
    assert any("allreduce 1." in line and "x ddp" in line for line in lines)
    assert max(map(len, lines)) <= 80
    raced(tmp_path / "b", rounds=3, progress=False)
    assert capsys.readouterr().err == ""


def test_importing_a_file_of_the_room_does_not_hide_the_function(tmp_path):
    import paceline.race.plan

    assert callable(paceline.race)
    assert paceline.race.plan.RacePlan
    assert paceline.race is sys.modules["paceline.race"]


def test_a_notebook_shows_a_table_and_the_intervals(tmp_path):
    page = raced(tmp_path)._repr_html_()
    assert "<table>" in page
    assert page.count("<svg") == 3
    assert "allreduce wins on 2 workers" in page
    odd = paceline.race(
        model="mlp", strategies=["<b>x</b>: allreduce"], runs=tmp_path, rounds=1, measured=Turns({"<b>x</b>": 9.0})
    )
    assert "<b>x" not in odd._repr_html_()


def test_records_are_a_sequence_that_prints_as_a_table(tmp_path):
    result = raced(tmp_path)
    records = paceline.records(result.folder)
    assert len(records) == len(result.records) > 6
    assert {record.id for record in records} == {record.id for record in result.records}
    assert len(records[:2]) == 2
    assert repr(records).splitlines()[0] == f"{len(records)} records"
    assert "<table>" in records._repr_html_()


def test_rows_go_to_pandas_if_it_is_there(tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    result = raced(tmp_path)
    frame = result.to_pandas()
    assert len(frame) == len(result.records)
    assert {"contender", "rate", "round", "of_ddp"} <= set(frame.columns)
    assert (frame[frame.contender == "ddp"].of_ddp == 1).all()
    assert len(paceline.records(result.folder).to_pandas()) == len(frame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="needs pandas"):
        result.to_pandas()


def test_wrong_settings_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(WrongCommand, match="margin"):
        paceline.race(model="mlp", margin=-1, runs=tmp_path)
    with pytest.raises(Refused, match="alreduce"):
        paceline.race(model="mlp", strategies=["alreduce"], runs=tmp_path)
    assert not list(tmp_path.iterdir())

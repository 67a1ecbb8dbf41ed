"""Files that are no records are named; whatever paceline writes is read."""

import errno
import json
import math
import os
import threading
from pathlib import Path

import pytest
from pydantic import ValidationError

from paceline.cli.show import details
from paceline.errors import NoRoom, WrongCommand
from paceline.measure.combining import failed_record
from paceline.measure.record.record import check_writable, read, write
from paceline.race import keep
from paceline.race.keep import save
from paceline.run.run import Run
from tests.report.samples import record

NAN, LONG = math.nan, 10**400


def put(values, *where, value):
    *outer, last = where
    for name in outer:
        values = values[name]
    values[last] = value


def without(values, *where):
    *outer, last = where
    for name in outer:
        values = values[name]
    del values[last]


# What is changed in a record, and the place that must be named.
DAMAGE = {
    "total is a text": (("rate", "total"), "x", "rate.total"),
    "mean is a text": (("rate", "total", "mean"), "abc", "rate.total.mean"),
    "mean is a number in quotes": (("rate", "total", "mean"), "5", "rate.total.mean"),
    "mean is NaN": (("rate", "total", "mean"), NAN, "rate.total.mean"),
    "mean is infinite": (("rate", "total", "mean"), math.inf, "rate.total.mean"),
    "mean is negative": (("rate", "total", "mean"), -3.0, "rate.total.mean"),
    "mean is zero": (("rate", "total", "mean"), 0, "rate.total.mean"),
    "mean is no float": (("rate", "total", "mean"), LONG, "rate.total.mean"),
    "low is a text": (("rate", "total", "low"), "x", "rate.total.low"),
    "a repeat is a text": (("rate", "total", "repeats"), [1.0, "x"], "rate.total.repeats.1"),
    "no rate": (("rate",), {}, "rate"),
    "cores are many": (("environment", "cores"), "many", "environment.cores"),
    "packages are a list": (("environment", "packages"), ["torch"], "environment.packages"),
    "no step": (("step",), {}, "step"),
    "a step without p95": (("step",), {"median": 1.0, "max": 1.0}, "step.p95"),
    "a step is NaN": (("step", "p99"), NAN, "step.p99"),
    "no breakdown": (("breakdown",), {}, "breakdown"),
    "no bytes": (("bytes",), {}, "bytes"),
    "bytes are a text": (("bytes", "received_per_step"), "x", "bytes.received_per_step"),
    "no memory": (("resources", "pss_peak"), [], "resources.pss_peak"),
    "a peak is a text": (("resources", "rss_peak"), ["much"], "resources.rss_peak.0"),
    "a label is a number": (("race", "label"), 3, "race.label"),
    "the same result is a text": (("race", "same_result"), "yes", "race.same_result"),
    "no workers": (("workers",), 0, "workers"),
    "an id in another folder": (("id",), "../../home", "id"),
    "an id that is a path": (("id",), "/tmp/x", "id"),
    "an id with a line end": (("id",), "a\nb", "id"),
    "no id": (("id",), "", "id"),
    "an id too long for a file": (("id",), "a" * 300, "id"),
    "half an efficiency": (("efficiency",), {"value": 1.0}, "efficiency"),
    "half an accuracy": (("accuracy",), [{"value": 1.0}], "accuracy.0.loss"),
    "no schema": (("schema",), None, "schema"),
    "nested deeply": (("plan", "x"), json.loads("[" * 200 + "]" * 200), "nested too deeply"),
}


@pytest.mark.parametrize(("where", "value", "named"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named(where, value, named, tmp_path):
    values = json.loads(record().to_json())
    put(values, *where, value=value)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(values))
    with pytest.raises(WrongCommand) as problem:
        read(path)
    assert named in str(problem.value)


@pytest.mark.parametrize("where", [("schema",), ("rate",), ("rate", "total"), ("rate", "total", "error"), ("step",)])
def test_what_is_missing_is_named(where, tmp_path):
    values = json.loads(record().to_json())
    without(values, *where)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(values))
    with pytest.raises(WrongCommand, match=r"\.".join(where)):
        read(path)


@pytest.mark.parametrize("text", ["[1]", "3", '"schema"', "null", "[" * 100_000, '{"a":' * 100_000, ""])
def test_other_json_is_no_record(text, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(WrongCommand, match="is not a record"):
        read(path)


@pytest.mark.parametrize(
    "kept",
    [
        record(),
        record("limit"),
        record("ddp"),
        record(kind="replayed"),
        record(kind="forecast"),
        record(verdict="unsteady", loss=[NAN], accuracy=[{"value": 0.1, "loss": NAN, "samples": 10}]),
        record(environment={}),
        record(verdict="failed", rate={}, step={}, breakdown={}, bytes={}, resources={}),
        failed_record(Run(model="mlp", workers=0), "at least 1 worker is needed"),
    ],
    ids=["measured", "limit", "ddp", "replayed", "forecast", "diverged", "nowhere", "failed", "refused"],
)
def test_what_is_written_is_read(kept, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(kept.to_json())
    # as text, because NaN is not equal to itself
    assert str(read(path)) == str(kept)


def test_fields_of_newer_versions_are_no_damage_and_survive_in_their_part(tmp_path):
    values = json.loads(record().to_json())
    values |= {"hereafter": [1, 2], "race": values["race"] | {"mates": ["a", "b"]}}
    values["rate"]["total"]["mood"] = "fine"
    path = tmp_path / "r.json"
    path.write_text(json.dumps(values))
    again = json.loads(read(path).to_json())
    assert (again["race"]["mates"], again["rate"]["total"]["mood"]) == (["a", "b"], "fine")
    assert "hereafter" not in again


def test_whole_numbers_stay_whole(tmp_path):
    kept = record(resources={"pss_peak": [480_000_000]}, bytes={"received_per_step": [12, 12.5], "per_edge": [[0]]})
    path = tmp_path / "r.json"
    path.write_text(kept.to_json())
    peak = read(path).resources["pss_peak"]
    assert isinstance(peak[0], int)
    assert '"per_edge": [\n   [\n    0\n' in path.read_text()


def test_a_forecast_has_no_memory_and_is_shown_without(tmp_path):
    path = tmp_path / "r.json"
    path.write_text(record(kind="forecast", resources={}).to_json())
    lines = list(details(read(path)))
    assert "kind    forecast: computed from profiles and links; nothing was run" in lines
    assert not [line for line in lines if line.startswith("memory")]
    with pytest.raises(ValidationError, match=r"resources\.pss_peak: it is missing"):
        record(kind="measured", resources={})


def test_a_failed_record_with_a_damaged_rate_is_named(tmp_path):
    path = tmp_path / "r.json"
    values = json.loads(record(verdict="failed").to_json()) | {"rate": {"total": "x"}}
    path.write_text(json.dumps(values))
    with pytest.raises(WrongCommand, match=r"rate\.total"):
        read(path)


def test_who_saves_a_record_gets_it_as_it_was_written(tmp_path):
    kept = record(text="paceline run -- python t.py --password t0ps3cret", run={"model": "t.py --token=t0ps3cret"})
    saved = save(kept, [[[1.0, "data", 0, -1, 0]]], tmp_path / "r.json")
    assert "t0ps3cret" not in str(saved)
    assert saved == read(tmp_path / "r.json")
    assert saved.run.model == "t.py --token=***"
    assert saved.events == "r.events.jsonl"


def test_a_variable_that_holds_a_word_of_ours_damages_no_record(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "steady")
    monkeypatch.setenv("OUR_TOKEN", "contiguous")
    assert save(record(), [], tmp_path / "r.json").verdict == "steady"
    assert read(tmp_path / "r.json").run.memory_format == "contiguous"


@pytest.mark.parametrize("word", ["memory", "worker", "network", "resource"])
def test_a_variable_that_holds_the_name_of_a_field_damages_no_record(word, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_CACHE", word)
    save(record(), [], tmp_path / "r.json")
    assert set(json.loads((tmp_path / "r.json").read_text())) == set(json.loads(record().to_json()))
    assert read(tmp_path / "r.json").run == record().run


def test_a_secret_in_a_name_that_somebody_gave_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKEN_CACHE", "t0ps3cret")
    told = {"fields": {"of t0ps3cret": 1}}
    save(record().model_copy(update={"experiment": told}), [], tmp_path / "r.json")
    assert "t0ps3cret" not in (tmp_path / "r.json").read_text()


def test_a_link_stays_a_link(tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("before")
    link.symlink_to(target)
    write(link, "after")
    assert link.is_symlink()
    assert target.read_text() == "after"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    heard = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write(pipe, "told")
    reader.join(10)
    assert heard == ["told"]
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_with_the_name_of_a_draft_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / f".r.json.{os.getpid()}").symlink_to(mine)
    write(tmp_path / "r.json", "{}")
    assert mine.read_text() == "precious"
    assert (tmp_path / "r.json").read_text() == "{}"


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    def full(path, text, **_):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(NoRoom, match="No space left"):
        write(tmp_path / "r.json", "x")
    assert list(tmp_path.iterdir()) == []


def test_what_has_no_room_for_its_events_is_kept_without_them(tmp_path, monkeypatch):
    def full(path, events):
        raise NoRoom("events cannot be written", why="No space left on device")

    monkeypatch.setattr(keep, "write_events", full)
    save(record(), [[[0.0, "begin", 0, -1, 0]]], tmp_path / "r.json")
    kept = read(tmp_path / "r.json")
    assert kept.events is None
    assert "No space left" in kept.notes[-1]


def test_a_file_in_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "r.json").write_text("old")
    check_writable(tmp_path / "r.json")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(WrongCommand, match="cannot be written"):
        check_writable(tmp_path / "r.json")


def test_a_field_that_is_not_known_is_left_out(tmp_path):
    kept = record()
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**json.loads(kept.to_json()), "added_later": {"x": [1]}}))
    assert read(path) == kept


@pytest.mark.parametrize(
    ("version", "remedy"), [("9.1.0", "paceline 9.1.0, which wrote it"), (None, "the paceline that")]
)
def test_a_setting_of_the_run_that_is_not_known_is_refused(version, remedy, tmp_path):
    values = json.loads(record().to_json())
    values["run"]["elephants"] = 3
    values["environment"] = {"paceline": version} if version else {}
    path = tmp_path / "r.json"
    path.write_text(json.dumps(values))
    with pytest.raises(WrongCommand, match=r"newer paceline: run\.elephants is a setting") as refused:
        read(path)
    assert remedy in refused.value.remedy


@pytest.mark.parametrize("environment", [{"paceline": "9.1.0"}, {}, "x"])
def test_another_schema_says_what_to_read_it_with(environment, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**json.loads(record().to_json()), "schema": 2, "environment": environment}))
    with pytest.raises(WrongCommand, match="has schema 2: this paceline reads schema 1") as refused:
        read(path)
    assert ("paceline 9.1.0" in refused.value.remedy) == (environment == {"paceline": "9.1.0"})

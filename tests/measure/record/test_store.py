import gc
import json
import os

import pytest

from paceline.errors import WrongCommand
from paceline.measure.record.events import read_events
from paceline.measure.record.store import EventFiles, choose, one, open_store
from tests.report.samples import race, record


@pytest.fixture
def runs(tmp_path):
    """Two records beside a race's folder, with things that are no records among them."""
    folder = tmp_path / "runs"
    (folder / "20261115-230042").mkdir(parents=True)
    for kept in race(worlds=(2,), strategies=("ddp", "allreduce"), starts=2):
        (folder / "20261115-230042" / f"{kept.run.strategy}-{kept.id}.json").write_text(kept.to_json())
    (folder / "one.json").write_text(record("wfbp", start=9).to_json())
    (folder / "20261115-230042" / "race.json").write_text('{"rounds": 2}')
    (folder / "profile.json").write_text('{"schema": 1, "layout": []}')
    (folder / "listed.json").write_text('[{"schema": 1, "run": {}}]')
    return folder


def test_records_are_found_at_any_depth_newest_first(runs):
    store = open_store([runs])
    times = [stored.record.time for stored in store.records]
    assert len(times) == 5
    assert times == sorted(times, reverse=True)
    assert store.skipped == ()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[: len(text) // 2], "it is no JSON"),
        (lambda text: text.replace('"schema": 1', '"schema": 99'), "this paceline reads schema 1"),
        (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "workers"}), "workers"),
        (lambda text: text.replace('"unit": "img"', '"unit": 7'), "unit"),
        (lambda _: "\x00\xff", "it is no JSON"),
        (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "rate"}), "rate"),
        (lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "schema"}), "schema is missing"),
        (lambda text: json.dumps({**(old := json.loads(text)), "run": {**old["run"], "later": 1}}), "run.later"),
        (lambda text: json.dumps({**json.loads(text), "rate": {"total": "x"}}), "rate.total"),
        (lambda _: '{"schema":' * 100_000, "it is nested too deeply"),
        (lambda text: json.dumps({**json.loads(text), "series": {"dropped_blocks": "x"}}), "series.dropped_blocks"),
        (lambda text: json.dumps({**json.loads(text), "communication": {"share": []}}), "communication.share"),
        (lambda text: json.dumps({**json.loads(text), "incidents": [{}]}), "incidents.0.what"),
        (lambda text: json.dumps({**json.loads(text), "replicas": {"identical": 1, "distance": []}}), "replicas."),
        (lambda text: json.dumps({**json.loads(text), "network": {"requested": {"lab": "x"}}}), "goodput"),
        (lambda text: json.dumps({**json.loads(text), "plan": {"chunks": {}}}), "plan.chunks"),
        (lambda text: json.dumps({**json.loads(text), "notes": [[0] * 70]}).replace("0, " * 68, "[" * 90), "JSON"),
        (lambda text: json.dumps({**json.loads(text), "task": json.loads("[" * 80 + "]" * 80)}), "nested too deeply"),
    ],
    ids=[
        *("cut", "schema", "missing", "type", "binary", "rate", "no schema", "newer", "total", "deep"),
        *("dropped", "share", "incident", "replicas", "network", "plan", "brackets", "deep list"),
    ],
)
def test_a_damaged_record_is_left_out_and_named(runs, damage, why):
    path = runs / "one.json"
    path.write_text(damage(path.read_text()))
    store = open_store([runs])
    assert len(store.records) == 4
    [skipped] = store.skipped
    assert skipped.path == path
    assert why in skipped.why


def test_a_record_that_is_met_twice_counts_once(runs):
    assert len(open_store([runs, runs / "one.json"]).records) == 5


def test_an_id_may_be_abbreviated_at_either_end_if_one_record_has_it(runs):
    store = open_store([runs])
    full = store.records[0].record.id
    assert store.find(full).record.id == full
    assert store.find("20261115-230109").record.id == full
    assert store.find("wfbp2").record.id == full
    with pytest.raises(WrongCommand, match=r"could be 5 records"):
        store.find("20261115")
    with pytest.raises(WrongCommand, match=r"there is no record 'nope'"):
        store.find("nope")


def test_records_are_chosen_by_folder_file_or_id(runs):
    by_all, _ = choose([], runs)
    by_folder, _ = choose([str(runs / "20261115-230042")], runs)
    mixed, _ = choose([str(runs / "one.json"), "wfbp2"], runs)
    assert [len(by_all), len(by_folder), len(mixed)] == [5, 4, 1]
    assert one("wfbp2", runs).record == one(str(runs / "one.json"), runs).record


def test_no_folder_is_no_record(tmp_path):
    with pytest.raises(WrongCommand, match="there is no record"):
        one("abc", tmp_path / "nowhere")


def test_events_are_read_by_rank_and_damaged_lines_left_out(tmp_path):
    path = tmp_path / "e.jsonl"
    good = ['[1, 2.0, "data", 0, -1, 0]', '[0, 1.0, "data", 0, -1, 0]']
    damaged = ["not a line", '[0, "x"]', '[-1, 1, "a", 0, 0, 0]', '[0, 1.0, "data", 1e999, 0, 0]', "[" * 100_000]
    path.write_text("\n".join([*good, *damaged]))
    assert read_events(path) == [[[1.0, "data", 0, -1, 0]], [[2.0, "data", 0, -1, 0]]]
    assert read_events(None) == []


@pytest.mark.timeout(10)
def test_a_pipe_and_a_huge_file_among_records_are_named_and_the_rest_is_read(runs):
    os.mkfifo(runs / "pipe.json")
    with (runs / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    store = open_store([runs])
    assert len(store.records) == 5
    assert {skip.path.name: skip.why for skip in store.skipped} == {
        "pipe.json": "it is a pipe",
        "huge.json": "it is larger than 33,554,432 bytes",
    }


def test_a_record_is_read_from_disk_once(runs, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "paceline.measure.record.record.read_bytes", lambda path: seen.append(path) or path.read_bytes()
    )
    assert open_store([runs / "one.json"]).records
    assert seen == [runs / "one.json"]


def test_a_profile_may_be_left_out_in_any_layout(runs):
    path = runs / "one.json"
    kept = record("wfbp", start=9, profile={"model": "mlp", "ready": [0.1]})
    for text in (kept.to_json(), json.dumps(json.loads(kept.to_json())), kept.to_json().replace("\n  ", "\n ")):
        path.write_text(text)
        [whole], [brief] = open_store([path]).records, open_store([path], without="profile").records
        assert whole.record.profile == {"model": "mlp", "ready": [0.1]}
        assert brief.record.model_copy(update={"profile": whole.record.profile}) == whole.record


def test_what_is_read_without_the_collector_leaves_it_as_it_was(runs):
    assert gc.isenabled()
    open_store([runs])
    assert gc.isenabled()


@pytest.mark.timeout(10)
def test_events_that_cannot_be_read_leave_a_report_without_a_timeline(runs):
    kept = record("wfbp", start=9, events="one.events.jsonl")
    (runs / "one.json").write_text(kept.to_json())
    with (runs / "one.events.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    unread = []
    assert EventFiles(open_store([runs]).records, unread).get(kept.id) == []
    assert [(skip.path.name, skip.why) for skip in unread] == [
        ("one.events.jsonl", "it is larger than 33,554,432 bytes")
    ]

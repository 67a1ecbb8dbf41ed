"""Events survive being written and read; a file elsewhere is not looked at."""

from paceline.measure.record.events import events_of, find_events, read_events, write_events

EVENTS = [[[1.0, "data", 0, -1, 0], [1.5, "ready", 0, 3, 2.5]], [[2.0, "data", 0, -1, 0]]]


def test_events_are_read_as_they_were_written(tmp_path):
    write_events(tmp_path / "r.json", EVENTS)
    assert read_events(events_of(tmp_path / "r.json")) == EVENTS


def test_without_events_there_is_no_file(tmp_path):
    write_events(tmp_path / "r.json", [[], []])
    assert list(tmp_path.iterdir()) == []
    assert find_events(tmp_path / "r.json", "r.events.jsonl") is None


def test_events_are_looked_for_beside_the_record_only(tmp_path):
    write_events(tmp_path / "r.json", EVENTS)
    assert find_events(tmp_path / "r.json", "../elsewhere/r.events.jsonl") == tmp_path / "r.events.jsonl"
    assert find_events(tmp_path / "r.json", None) is None

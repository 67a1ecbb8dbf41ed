"""Traces, timelines and reruns of real runs."""

import json

import pytest

from paceline.measure.record.events import read_events
from paceline.measure.record.record import read
from paceline.measure.record.store import Stored
from paceline.report.trace import one_step
from tests import forked

QUICK = ["--model", "mlp", "--steps", "3", "--repeats", "2", "--warmup", "1", "--batch-size", "8"]
pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]


def paceline(*words):
    done = forked.paceline(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_leaves_a_trace_and_can_be_done_again(tmp_path):
    paceline(
        "run", "-np", 2, *QUICK, "--schedule", "wfbp", "--trace", tmp_path / "t.json", "--json", tmp_path / "r.json"
    )
    trace = json.loads((tmp_path / "t.json").read_text())
    shown = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in shown} == {0, 1}
    assert {event["cat"] for event in shown} == {"compute", "communication"}
    assert {"data", "forward", "backward", "update"} <= {event["name"] for event in shown}
    clock = trace["otherData"]["clock"]
    # Processes of one host read the same clock, so the truth is 0 and must lie within the bound.
    assert all(abs(offset) <= within + 1e-9 for offset, within in zip(clock["offsets"], clock["within"], strict=True))

    stored = Stored(read(tmp_path / "r.json"), tmp_path / "r.json")
    spans = one_step(read_events(stored.events_path))
    own = [span for span in spans if span.rank == 0 and span.lane == "compute"]
    length = max(span.stop for span in own) - min(span.start for span in own)
    assert sum(span.stop - span.start for span in own) == pytest.approx(length, rel=0.02)
    assert len([span for span in spans if span.lane == "communication"]) == 2 * 6

    out = paceline("rerun", tmp_path / "r.json", "--runs", tmp_path / "runs")
    assert "A / B" in out
    [again] = (tmp_path / "runs").glob("*.json")
    assert read(again).run == stored.record.run


@pytest.mark.parametrize(("words", "buckets"), [(["ddp"], 1), (["ddp", "--accumulate", 2], 1), (["limit"], 0)])
def test_references_have_a_timeline_too(tmp_path, words, buckets):
    """DDP's buckets travel in a lane of their own, and it has bytes; the limit has neither."""
    paceline("run", "-np", 2, *QUICK, "--strategy", *words, "--json", tmp_path / "r.json")
    record = read(tmp_path / "r.json")
    events = read_events(Stored(record, tmp_path / "r.json").events_path)
    spans = one_step(events)
    assert {span.rank for span in spans} == {0, 1}
    assert {"forward", "backward", "update"} <= {span.name for span in spans}
    assert len([span for span in spans if span.lane == "communication"]) == 2 * buckets
    assert len(record.bytes.get("buckets", [])) == buckets
    expected = [float(sum(record.bytes.get("buckets", [])))] * 2  # a ring of two: each hears all of it once
    assert record.bytes["received_per_step"] == record.bytes["sent_per_step"] == expected
    assert record.communication["exposed"] is None or not buckets, "lanes do not tell what is exposed"

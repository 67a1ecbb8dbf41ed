"""Schedules that cross the step, with real processes: order, credit and weights, from the record and its events."""

import json

import pytest

from tests.forked import paceline
from tests.train.test_crossing import inversions

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forks")]
NETWORK = ("--model", "mlp", "--batch-size", "4", "--steps", "3", "--repeats", "1", "--warmup", "1")


def run(tmp_path, *words, workers=3):
    record = tmp_path / "r.json"
    done = paceline("run", "-np", workers, *words, *NETWORK, "--json", record)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [json.loads(line) for line in (tmp_path / "r.events.jsonl").read_text().splitlines()]
    return json.loads(record.read_text()), events, done.stdout


def check_priority(record, events):
    plan = record["plan"]
    first = [(kind, step, what) for rank, _, kind, step, what, _ in events if rank == 0]
    begin = next(k for k, (kind, _, _) in enumerate(first) if kind == "begin")
    wrong, most = inversions(first[begin:], plan)
    assert wrong == []
    assert most <= 0.8 * 2**20
    assert max(plan["nbytes"]) <= 0.2 * 2**20
    leaves = [[(s, w) for rank, _, k, s, w, _ in events if rank == r and k == "leave"] for r in range(3)]
    assert leaves[0] == leaves[1] == leaves[2]
    assert crossings(first), "the event stream does not show a layer that waits for the step before"


def crossings(first):
    """Steps whose parameters were asked for in the forward of the next."""
    forward, found = -1, set()
    for kind, step, _ in first:
        if kind == "forward":
            forward = step
        elif kind == "need" and step < forward:
            found.add(step)
    return found


def test_priority_over_shm_has_no_inversions_and_keeps_its_credit(tmp_path):
    record, events, _ = run(tmp_path, "--strategy", "p3", "--comm", "shm")
    check_priority(record, events)
    assert record["replicas"]["identical"]
    assert record["network"]["measured"]["bandwidth"] > 0
    assert len(record["profile"]["ready"]) == len(record["profile"]["layout"])
    assert min(record["breakdown"].values()) >= 0


@pytest.mark.slow
def test_priority_over_gloo_has_no_inversions_and_keeps_its_credit(tmp_path):
    record, events, _ = run(tmp_path, "--strategy", "p3", "--comm", "gloo")
    check_priority(record, events)
    assert record["replicas"]["identical"]


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["shm", "gloo"])
@pytest.mark.parametrize("words", [("--strategy", "dear"), ("--exchange", "ps(servers=1)", "--schedule", "priority")])
def test_ranks_that_cross_stay_bit_identical(tmp_path, comm, words):
    record, _, _ = run(tmp_path, *words, "--comm", comm, workers=2)
    assert record["replicas"]["identical"]


@pytest.mark.slow
def test_auto_says_and_keeps_what_it_chose_and_a_record_gives_its_times_to_another_run(tmp_path):
    record, _, out = run(tmp_path, "--schedule", "auto", workers=2)
    chosen = record["plan"]["tuning"]["chosen"]
    assert f"schedule auto chose {chosen} of:" in out
    assert record["plan"]["schedule"] == chosen
    kept = tmp_path / "kept.json"
    (tmp_path / "r.json").rename(kept)
    again, _, _ = run(tmp_path, "--schedule", "mgwfbp", "--profile", str(kept), workers=2)
    assert again["profile"]["ready"] == record["profile"]["ready"]
    assert again["network"] == record["network"]


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["shm", "gloo"])
def test_auto_that_crosses_also_tries_dear(tmp_path, comm):
    record, _, out = run(tmp_path, "--schedule", "auto(crossing=true)", "--comm", comm, workers=2)
    seconds = record["plan"]["tuning"]["seconds"]
    assert {"priority", "dear", "dear(mb=2.5)"} <= seconds.keys()
    assert min(seconds.values()) > 0
    assert record["plan"]["schedule"] == record["plan"]["tuning"]["chosen"]
    assert "ms per step  dear" in out
    assert any("tries priority" in note and "dear(mb=2.5)" in note for note in record["notes"])
    assert record["replicas"]["identical"]

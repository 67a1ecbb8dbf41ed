"""Shared starts with real processes: contenders take turns, and a contender that fails is named."""

import math

import pytest

from paceline.errors import TurnFailed
from paceline.measure.together import MEMORY, measure_together
from paceline.measure.turns import TurnsTask
from paceline.run.run import Run

pytestmark = [pytest.mark.multi, pytest.mark.usefixtures("forked_workers")]


def task(names, **changes):
    runs = [Run(workers=2, strategy=name, model="mlp", steps=2, warmup=2, threads=1) for name in names]
    return TurnsTask.model_validate({"runs": runs, "labels": names, "turns": 4, **changes})


def test_contenders_take_turns_and_each_has_a_record_of_its_own():
    names = ("limit", "ddp", "allreduce", "dear")
    lines = []
    found = measure_together(task(names), on_line=lambda rank, stream, line: lines.append(line))
    records = {name: record for name, (record, _) in zip(names, found, strict=True)}
    for name, (record, events) in zip(names, found, strict=True):
        assert (record.run.strategy, record.workers) == (name, 2)
        assert len(record.rate["total"]["repeats"]) == record.run.repeats == 4
        assert len(record.series["seconds"]) == 8  # the step before each block is in no figure
        parts = dict(record.breakdown)
        assert sum(parts.values()) - parts["step"] == pytest.approx(parts["step"], rel=0.02)
        assert all(events)
        assert MEMORY in record.notes
        assert all(math.isfinite(value) for value in record.loss)
    nbytes = [sum(records[name].bytes["received_per_step"]) for name in ("limit", "allreduce", "dear")]
    assert nbytes[0] == 0 < nbytes[1]
    # Exchanges of dear cross the block at both ends, and all are counted.
    assert nbytes[2] == pytest.approx(nbytes[1], rel=0.01)
    assert records["allreduce"].replicas["identical"]
    assert "turn 4/4" in lines


def test_a_contender_that_fails_is_named():
    good = task(("allreduce",)).runs[0]
    bad = good.with_(optimizer="sgd(lr=1e30, momentum=0.9)")
    with pytest.raises(TurnFailed) as caught:
        measure_together(TurnsTask(runs=(good, bad), labels=("good", "bad"), turns=40), on_line=lambda *_: None)
    assert (caught.value.contender, caught.value.kind) == ("bad", "NonFinite")


def test_copies_that_do_not_fit_are_refused_before_they_are_built():
    with pytest.raises(TurnFailed, match="GB are free") as caught:
        measure_together(task(("limit", "allreduce"), room=1), on_line=lambda *_: None)
    assert (caught.value.contender, caught.value.kind) == ("", "NoRoom")


def test_in_sequence_only_one_contender_is_in_memory_and_all_have_records():
    names, lines = ("limit", "ddp", "allreduce", "dear"), []
    few = task(names, turns=2, room=1, in_sequence=True)  # that little room would refuse copies
    found = measure_together(few, on_line=lambda rank, stream, line: lines.append(line), watched=0)
    for name, (record, _) in zip(names, found, strict=True):
        assert (record.run.strategy, record.workers, record.run.repeats) == (name, 2, 2)
        assert len(record.series["seconds"]) == 4
        assert all(math.isfinite(value) for value in record.loss)
    assert found[2][0].replicas["identical"]
    nbytes = [sum(record.bytes["received_per_step"]) for record, _ in found]
    assert nbytes[0] == 0 < nbytes[2]
    order = [line.partition(": ")[2] for line in lines if "/4: " in line]
    assert order == list(names)


def test_a_contender_that_fails_in_sequence_is_named():
    good = task(("allreduce",)).runs[0]
    bad = good.with_(optimizer="sgd(lr=1e30, momentum=0.9)")
    both = TurnsTask(runs=(good, bad), labels=("good", "bad"), turns=40, in_sequence=True)
    with pytest.raises(TurnFailed) as caught:
        measure_together(both, on_line=lambda *_: None)
    assert (caught.value.contender, caught.value.kind) == ("bad", "NonFinite")

"""Advice: the fastest with the same result; what changes convergence needs evidence."""

from types import SimpleNamespace

import pytest

from paceline.forecast.advise import advise, evidence, flags, spoken
from paceline.forecast.calibrate import calibrate
from paceline.forecast.machines import read_machines
from paceline.forecast.study import study
from paceline.run.run import Run

NAMES = ("limit", "allreduce", "bsp", "wfbp", "neighbor_allreduce", "local_sgd", "replicated")


def studied(bandwidth="1gbit", step=0.05):
    machines = read_machines(f"machines(nodes=8, ranks=1, bandwidth={bandwidth})")
    known = calibrate("resnet18", step=step, batch=32)
    return study(Run(model="resnet18", batch_size=32), NAMES, [8], machines.fabric(), known)


def graded(strategy, value):
    return SimpleNamespace(run=Run(model="resnet18", strategy=strategy), accuracy=[{"value": value}])


def test_what_changes_convergence_is_not_advised_without_evidence():
    found = studied()
    advice = advise(found)
    assert advice.best.same_result
    assert {point.strategy for point in advice.faster} == {"neighbor_allreduce", "local_sgd"}
    assert "Faster, but not advised" in " ".join(spoken(found, advice))


def test_evidence_of_accuracy_makes_it_advisable():
    found = studied()
    records = [graded("allreduce", 0.90), graded("local_sgd", 0.91), graded("neighbor_allreduce", 0.80)]
    advice = advise(found, records)
    assert advice.best.strategy == "local_sgd"
    text = " ".join(spoken(found, advice))
    assert "accuracy 0.9100, all-reduce 0.9000" in text


@pytest.mark.parametrize(
    "records",
    [[], [graded("local_sgd", 0.9)], [graded("allreduce", 0.9), graded("local_sgd", 0.85)]],
    ids=["none", "no base", "worse"],
)
def test_weak_evidence_is_none(records):
    assert "local_sgd" not in evidence("resnet18", records)


def test_evidence_of_another_model_does_not_count():
    assert evidence("resnet50", [graded("allreduce", 0.9), graded("local_sgd", 0.9)]) == {}


def test_stock_ddp_is_enough_where_everything_hides():
    found = studied("100gbit", step=1.0)
    advice = advise(found)
    assert advice.ddp_is_enough
    assert "Stock DDP is enough: DistributedDataParallel(model, bucket_cap_mb=25)" in " ".join(spoken(found, advice))


def test_the_command_can_be_pasted():
    found = studied()
    assert flags(found, advise(found)).startswith("paceline run -np 8 --strategy ")

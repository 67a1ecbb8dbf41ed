"""Fashion-MNIST with small_cnn: lossless schedules give one loss curve, feedback keeps what top-k leaves behind."""

from functools import lru_cache
from pathlib import Path
from statistics import fmean

import pytest

from paceline.comm.thread import run_ranks
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import schedules
from paceline.train.build import training_of
from paceline.train.evaluate import accuracy

pytestmark = pytest.mark.root
FOLDER = Path("/usr/share/datasets/fashion-mnist")
STEPS = 150
# All that are there of these; a schedule that changes no sum belongs here.
LOSSLESS = ["wfbp", "fusion(mb=0.1)", "mgwfbp", "mgwfbp(greedy)", "priority", "dear", "auto"]
PRESENT = [text for text in LOSSLESS if text.partition("(")[0] in schedules.MENU.names()]


@pytest.fixture(autouse=True)
def files():
    if not FOLDER.is_dir():
        pytest.skip("needs Fashion-MNIST: apt-get install dataset-fashion-mnist")


@lru_cache
def trained(schedule="bsp", workers=2, compress="none", optimizer="sgd(lr=0.05, momentum=0.9)", steps=STEPS):
    """The loss of every step, averaged over ranks, and the accuracy afterwards."""
    run = Run(
        workers=workers,
        schedule=schedule,
        compress=compress,
        model="small_cnn(width=8)",
        source=f"idx({FOLDER})",
        global_batch=64,
        optimizer=optimizer,
    )

    def body(comm):
        training = training_of(compose(run), comm)
        training.steps(steps, Meter())
        return training.losses, accuracy(training, comm)

    results = run_ranks(workers, body)
    return [fmean(losses) for losses in zip(*(losses for losses, _ in results), strict=True)], results[0][1]


@pytest.mark.parametrize("schedule", PRESENT)
def test_a_lossless_schedule_gives_the_loss_curve_of_bsp(schedule):
    expected, _ = trained()
    found, _ = trained(schedule)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= 1e-5


def test_another_number_of_workers_sees_the_same_samples():
    """Sums over other shares round otherwise, and training amplifies it: only the first steps can be compared."""
    one, two = trained(workers=1)[0], trained()[0]
    assert max(abs(a - b) for a, b in zip(one[:5], two[:5], strict=True)) < 1e-4


def test_the_network_learns_fashion():
    losses, found = trained()
    assert found["samples"] == 10_000
    assert found["value"] > 0.7
    assert fmean(losses[-10:]) < 0.5 * losses[0]


def graded(compress, optimizer="sgd(lr=0.1)", steps=900):
    return trained(compress=compress, optimizer=optimizer, steps=steps)[1]["value"]


def test_one_percent_with_feedback_comes_within_a_point_of_dense_and_without_does_not():
    dense = graded("none")
    assert graded("feedback(topk(ratio=0.01))") >= dense - 0.01
    assert graded("topk(ratio=0.01)") < dense - 0.05


def test_a_majority_of_signs_learns():
    assert graded("sign", "sgd(lr=0.0005)", steps=450) > 0.65

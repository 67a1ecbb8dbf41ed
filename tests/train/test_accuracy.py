"""Accuracy on the test part: every sample once, the same for any number of workers, the mean where replicas differ."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import WorkloadError
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train import evaluate
from paceline.train.build import training_of, workload_of
from paceline.workload.sources import MENU
from tests.workload.sources.idxfiles import write_folder


def with_normalization(*, channels: int = 3, classes: int = 10):
    layers = nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, classes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "idx", train=96, test=613, size=8, classes=3)


def run_of(folder, workers, **settings):
    settings = {"model": "small_cnn(width=4)", "optimizer": "sgd(lr=0.05)", "global_batch": 24, **settings}
    return Run(workers=workers, source=f"idx({folder})", **settings)


def judged(run, steps):
    """Return the accuracy of a run after some steps on every rank, and its training losses."""

    def body(comm):
        training = training_of(compose(run), comm)
        training.steps(steps, Meter())
        found = evaluate.accuracy(training, comm)
        weights = torch.cat([p.detach().flatten() for p in training.workload.model.parameters()])
        assert training.model.training
        return found, training.losses, weights

    return run_ranks(run.workers, body)


def test_every_test_sample_is_counted_once(folder):
    ((found, _, _),) = judged(run_of(folder, 1), 2)
    run = run_of(folder, 1)
    source = MENU.make(run.source)
    assert found["samples"] == 613
    assert found["value"] * 613 == pytest.approx(round(found["value"] * 613), abs=1e-9)
    assert len(source.tests()) == 613


def test_accuracy_is_what_one_pass_over_all_samples_gives(folder):
    run = run_of(folder, 1)
    ((found, _, weights),) = judged(run, 5)
    source = MENU.make(run.source)
    workload = workload_of(run, source)
    torch.nn.utils.vector_to_parameters(weights, workload.model.parameters())
    images, labels = source.tests()(torch.arange(613))
    with torch.no_grad():
        scores = workload.model.eval()(images)
    assert found["value"] == (scores.argmax(1) == labels).double().mean()
    assert found["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(scores.double(), labels)), rel=1e-5)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_accuracy_is_the_same_for_any_number_of_workers(folder, workers):
    """Without steps, parameters have the same bits, and so must the accuracy."""
    ((alone, _, _),) = judged(run_of(folder, 1), 0)
    for found, _, _ in judged(run_of(folder, workers), 0):
        assert found == alone


def test_training_on_files_learns(folder):
    ((before, _, _),) = judged(run_of(folder, 1), 0)
    (after, losses, _), _ = judged(run_of(folder, 2), 40)
    assert after["value"] > max(0.9, before["value"])
    assert losses[-1] < losses[0]


def test_replicas_that_differ_are_judged_by_their_mean(folder):
    """Rule atc with a long period: ranks train apart, and each would have an accuracy of its own."""
    run = run_of(folder, 2, rule="atc(every=100)")
    results = judged(run, 6)
    assert not torch.equal(results[0][2], results[1][2])
    source = MENU.make(run.source)
    workload = workload_of(run, source)
    torch.nn.utils.vector_to_parameters((results[0][2] + results[1][2]) / 2, workload.model.parameters())
    with torch.no_grad():
        images, labels = source.tests()(torch.arange(613))
        expected = float(torch.nn.functional.cross_entropy(workload.model.eval()(images).double(), labels))
        own = [_loss(workload, weights, images, labels) for _, _, weights in results]
    for found, _, _ in results:
        assert found["loss"] == pytest.approx(expected, rel=1e-5)
    assert all(abs(loss - expected) > 1e-4 * expected for loss in own), "the mean could not be told from one replica"


def _loss(workload, weights, images, labels):
    torch.nn.utils.vector_to_parameters(weights, workload.model.parameters())
    return float(torch.nn.functional.cross_entropy(workload.model(images).double(), labels))


def test_statistics_are_averaged_for_evaluation_and_given_back(folder):
    run = run_of(folder, 2, model="tests.train.test_accuracy:with_normalization")

    def body(comm):
        training = training_of(compose(run), comm)
        training.steps(1, Meter())
        assert evaluate.statistics(training.workload.model)
        before = [b.clone() for b in evaluate.statistics(training.workload.model)]
        found = evaluate.accuracy(training, comm)
        after = evaluate.statistics(training.workload.model)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        return found

    one, other = run_ranks(2, body)
    assert one == other


@pytest.mark.parametrize("model", ["resnet18", "small_cnn(channels=3)"])
def test_a_model_that_cannot_take_the_samples_is_refused_before_the_first_step(folder, model):
    run = Run(model=model, source=f"idx({folder})")
    with pytest.raises(WorkloadError, match=r"cannot take the samples of idx.*channels=3"):
        workload_of(run, MENU.make(run.source))


def test_a_model_without_right_and_wrong_has_no_accuracy(folder):
    run = run_of(folder, 1)

    def body(comm):
        training = training_of(compose(run), comm)
        training.workload = replace(training.workload, grade=None)
        return evaluate.accuracy(training, comm)

    assert run_ranks(1, body) == [None]


@pytest.mark.parametrize("piece", [3, 1 << 20])
def test_replicas_are_compared_bit_by_bit_and_by_distance(piece, monkeypatch):
    monkeypatch.setattr(evaluate, "PIECE", piece)

    def work(comm, shift):
        model = nn.Linear(4, 1, bias=False)
        nn.init.constant_(model.weight, 1.0 + shift * (2 * comm.rank - 1))
        return evaluate.replicas(model, comm)

    assert run_ranks(2, lambda comm: work(comm, 0.0)) == [{"identical": True, "distance": 0.0}] * 2
    for found in run_ranks(2, lambda comm: work(comm, 0.25)):
        assert not found["identical"]
        assert found["distance"] == pytest.approx(0.25)  # from 0.75 and 1.25 to 1


def test_replicas_of_any_layout_and_dtype_are_compared():
    def work(comm):
        model = nn.ParameterList(
            [torch.arange(8.0)[::2], torch.ones(2, 3).t(), torch.ones(3, dtype=torch.bfloat16), torch.tensor(1.0)]
        )
        return evaluate.replicas(model, comm)["identical"]

    assert run_ranks(2, work) == [True, True]


@pytest.mark.parametrize("other", [(2.0, 1.0), (1.0, -2.0), (-1.0, 2.0), (1.0, 4.0)])
def test_replicas_that_differ_in_little_differ(other):
    def work(comm):
        model = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[(1.0, 2.0), other][comm.rank]]))
        return evaluate.replicas(model, comm)["identical"]

    assert run_ranks(2, work) == [False, False]

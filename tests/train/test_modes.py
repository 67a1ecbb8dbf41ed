"""Evaluating a model leaves every module in the mode that it was in."""

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.evaluate import accuracy, in_eval
from paceline.train.flops import training_flops
from tests.workload.sources.idxfiles import write_folder


def with_fixed_statistics(*, channels: int = 1, classes: int = 10):
    """As one fine-tunes: the statistics of BatchNorm stay as they are."""
    norm = nn.BatchNorm2d(4).eval()
    layers = nn.Conv2d(channels, 4, 3), norm, nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, classes))


def modes(model):
    return [module.training for module in model.modules()]


class Merging(nn.Linear):
    """Some layers do more than to take down their mode."""

    merged = False

    def train(self, mode=True):
        self.merged = not mode
        return super().train(mode)


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_is_back_in_its_own_mode(fails):
    model = nn.Sequential(with_fixed_statistics(), nn.Dropout(), Merging(10, 10))
    before = modes(model)
    assert True in before
    assert False in before
    try:
        with in_eval(model):
            assert not any(modes(model))
            assert model[2].merged
            if fails:
                raise RuntimeError("while it is looked at")
    except RuntimeError:
        assert fails
    assert modes(model) == before
    assert not model[2].merged


def test_counting_flops_leaves_fixed_statistics_fixed():
    model = with_fixed_statistics()
    before = modes(model)
    assert training_flops(model, lambda model, x: model(x).sum(), torch.zeros(2, 1, 8, 8), samples=2)
    assert modes(model) == before


def test_a_run_with_fixed_statistics_keeps_them_through_trial_and_evaluation(tmp_path):
    folder = write_folder(tmp_path / "idx", train=16, test=8, size=8, classes=3)
    run = Run(model="tests.train.test_modes:with_fixed_statistics", source=f"idx({folder})", global_batch=4)

    def body(comm):
        training = training_of(compose(run), comm)
        model, found = training.workload.model, [modes(training.workload.model)]
        training.steps(1, Meter())
        assert accuracy(training, comm)
        training.steps(1, Meter())
        return [*found, modes(model)], model[1].running_mean.tolist()

    ((found, means),) = run_ranks(1, body)
    assert found == [modes(with_fixed_statistics())] * 2
    assert means == [0.0] * 4

"""A copy of a wrapped model (for an average of weights, or an evaluation) is independent of training."""

import copy

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from paceline.comm.thread import run_ranks
from paceline.engine.engine import Engine
from paceline.engine.gates import Lesson
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.rules._crossing import CrossingDuty
from paceline.train.pace import Pace
from paceline.train.planning import WATCHED
from paceline.train.watch import Watch
from tests.train.problems import batches, build, flat, loss_of, mlp

ACTS = [(CrossingDuty, ("arrive", "finish")), (Lesson, ("_enter", "_leave")), (Watch, ("_begin", "_enter", "_end"))]


def pace_of(comm, model, schedule):
    axes = compose(Run(workers=comm.size, schedule=schedule)).axes
    return Pace(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), comm=comm, axes=axes)


@pytest.fixture
def acts(monkeypatch):
    """Record the actions of the training hooks by name; copies must not trigger them."""
    found = []

    def noted(name, act):
        def spy(self, *arguments):
            found.append(name)
            return act(self, *arguments)

        return spy

    def refuse(self, memo):
        raise AssertionError("an engine was copied")

    monkeypatch.setattr(Engine, "__deepcopy__", refuse, raising=False)
    for owner, names in ACTS:
        for name in names:
            monkeypatch.setattr(owner, name, noted(f"{owner.__name__}.{name}", getattr(owner, name)))
    return found


@pytest.mark.parametrize("schedule", ["priority", "dear", "mgwfbp", "auto", "auto(crossing=true)"])
def test_a_copy_runs_without_what_trains_the_model(acts, schedule):
    def aside(model, x, y):
        """Train with copies of the model and check that they trigger no action."""
        for make in (copy.deepcopy, AveragedModel):
            twin = make(model)
            acts.clear()
            loss_of(twin, x, y).backward()
            twin.load_state_dict(twin.state_dict())
            assert all(parameter.grad is not None for parameter in twin.parameters())
            assert not acts

    def work(comm):
        model, seen = mlp(), set()
        pace = pace_of(comm, model, schedule)
        for x, y in batches(steps=WATCHED + 4):
            aside(model, x, y)
            loss_of(model, x, y).backward()
            seen.update(acts)
            pace.step()
        aside(model, x, y)
        pace.finish()
        return seen, flat(model)

    ((seen, weights),) = run_ranks(1, work)
    assert "Watch._enter" in seen
    assert ("CrossingDuty.arrive" in seen) == ("Lesson._enter" in seen) == (schedule not in ("mgwfbp", "auto"))
    (expected,) = run_ranks(1, lambda comm: trained(comm, mlp(), "bsp"))
    assert (weights - expected).abs().max() <= 1e-6  # chunks cut elsewhere may round differently


def trained(comm, model, schedule, call=lambda model: model):
    pace = pace_of(comm, model, schedule)
    for x, y in batches(steps=WATCHED + 4):
        loss_of(call(model), x, y).backward()
        pace.step()
    pace.finish()
    return flat(model)


class Scaled(nn.Module):
    """A parameter of its own beside a layer's."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(8, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.inner(x) * self.scale


@pytest.mark.parametrize("schedule", ["priority", "dear"])
def test_a_shallow_copy_waits_for_the_parameters_that_it_shares(schedule):
    (expected,) = run_ranks(1, lambda comm: trained(comm, build(Scaled), "bsp"))
    (found,) = run_ranks(1, lambda comm: trained(comm, build(Scaled), schedule, copy.copy))
    assert (found - expected).abs().max() <= 1e-6

"""Every parameter that the optimizer updates is exchanged; otherwise step() raises."""

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import WorkloadError, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from tests.train.problems import flat


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def pace_of(comm, model, optimizer, **axes):
    return Pace(model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, **axes)).axes)


def train(comm, model, pace, steps):
    for _ in range(steps):
        (model(torch.ones(1, 2)) * (comm.rank + 1)).sum().backward()
        pace.step()


RULES = [{}, {"rule": "atc", "exchange": "neighbor(ring)"}]


@pytest.mark.parametrize("axes", RULES, ids=str)
def test_a_parameter_of_the_optimizer_that_the_model_has_not_is_refused(axes):
    def work(comm):
        model, temperature = two_layers(), nn.Parameter(torch.ones(3))
        pace_of(comm, model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1), **axes)

    with pytest.raises(
        WrongCommand, match=r"SGD has parameters that Sequential has not, of shape \(3,\).*wrap a module"
    ):
        run_ranks(2, work)


def test_a_parameter_that_joins_the_optimizer_later_must_be_the_models():
    def work(comm):
        model = two_layers()
        pace = pace_of(comm, model, torch.optim.SGD(model[1].parameters(), lr=0.1))
        train(comm, model, pace, 1)
        pace.optimizer.add_param_group({"params": list(model[0].parameters())})
        train(comm, model, pace, 2)
        weights = flat(model)
        pace.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
        with pytest.raises(WrongCommand, match="that Sequential has not"):
            train(comm, model, pace, 1)
        return weights

    first, second = run_ranks(2, work)
    assert torch.equal(first, second)


@pytest.mark.parametrize("axes", RULES, ids=str)
def test_what_was_frozen_at_wrap_may_not_be_updated_later(axes):
    def work(comm):
        model = two_layers()
        model[0].requires_grad_(False)
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.1), **axes)
        train(comm, model, pace, 2)
        model[0].requires_grad_(True)
        train(comm, model, pace, 1)

    with pytest.raises(
        WorkloadError, match=r"0.weight requires gradients now, and was frozen at wrap.*freeze afterwards"
    ):
        run_ranks(2, work)


def test_an_optimizer_that_leaves_out_what_was_frozen_does_not_mind_its_gradient():
    def work(comm):
        model = two_layers()
        model[0].requires_grad_(False)
        pace = pace_of(comm, model, torch.optim.SGD(model[1].parameters(), lr=0.1))
        model[0].requires_grad_(True)
        train(comm, model, pace, 2)
        return flat(model)

    first, second = run_ranks(2, work)
    assert torch.equal(first, second)


@pytest.mark.parametrize("schedule", ["fusion", "wfbp", "dear", "priority"])
def test_what_is_frozen_after_wrap_may_be_unfrozen(schedule):
    def work(comm):
        model = two_layers()
        before = flat(model[0])
        # weight decay would move a frozen parameter that was given a zero gradient
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
        pace = pace_of(comm, model, optimizer, schedule=schedule)
        model[0].requires_grad_(False)
        train(comm, model, pace, 6)
        pace.finish()
        kept = torch.equal(before, flat(model[0]))
        model[0].requires_grad_(True)
        train(comm, model, pace, 2)
        pace.finish()
        return kept, torch.equal(before, flat(model[0])), flat(model)

    (kept, still, first), (_, _, second) = run_ranks(2, work)
    assert (kept, still) == (True, False)
    assert torch.equal(first, second)

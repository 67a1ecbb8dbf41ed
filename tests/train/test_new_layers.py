"""A layer that comes to the model after wrap is trained together or not at all."""

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import WorkloadError
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from tests.train.problems import build, flat

RULES = [{}, {"rule": "atc", "exchange": "neighbor(ring)"}]


def two_layers():
    return build(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)))


def pace_of(comm, model, optimizer, **axes):
    return Pace(model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, **axes)).axes)


def wrapped(comm, **axes):
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, pace_of(comm, model, optimizer, **axes)


def train(comm, model, pace, steps):
    for _ in range(steps):
        (model(torch.ones(1, 2)) * (comm.rank + 1)).sum().backward()
        pace.step()


def layer_of(comm, inputs=1):
    """Each rank's own, as it is without a common seed."""
    layer = nn.Linear(inputs, 1)
    nn.init.constant_(layer.weight, comm.rank + 1.0)
    return layer


@pytest.mark.parametrize("axes", RULES, ids=str)
def test_a_layer_that_is_new_since_wrap_may_not_be_updated(axes):
    def work(comm):
        model, optimizer, pace = wrapped(comm, **axes)
        train(comm, model, pace, 2)
        optimizer.add_param_group({"params": model.append(layer_of(comm))[2].parameters()})
        train(comm, model, pace, 1)

    with pytest.raises(WorkloadError, match=r"2.weight is new in the model since wrap: 2 such .*close\(\).*wrap again"):
        run_ranks(2, work)


def test_a_layer_in_the_place_of_another_is_seen_though_their_number_stays():
    def work(comm):
        model, optimizer, pace = wrapped(comm)
        train(comm, model, pace, 2)
        model[1] = layer_of(comm, inputs=2)
        optimizer.param_groups[0]["params"] = list(model.parameters())
        train(comm, model, pace, 1)

    with pytest.raises(WorkloadError, match=r"1.weight is new in the model since wrap"):
        run_ranks(2, work)


def test_the_optimizer_may_keep_the_layer_that_was_replaced():
    """It is the new one that is named, and not the old one, which the model has no more."""

    def work(comm):
        model, optimizer, pace = wrapped(comm)
        model[1] = layer_of(comm, inputs=2)
        train(comm, model, pace, 2)
        optimizer.add_param_group({"params": model[1].parameters()})
        train(comm, model, pace, 1)

    with pytest.raises(WorkloadError, match=r"1.weight is new in the model since wrap"):
        run_ranks(2, work)


def test_after_a_new_wrap_the_new_layer_is_trained_together():
    def work(comm):
        model, optimizer, pace = wrapped(comm)
        train(comm, model, pace, 2)
        pace.close()
        optimizer.add_param_group({"params": model.append(layer_of(comm))[2].parameters()})
        again = pace_of(comm, model, optimizer)
        start = flat(model[2])
        train(comm, model, again, 2)
        return start, flat(model[2]), flat(model)

    (start, trained, first), (_, _, second) = run_ranks(2, work)
    assert torch.equal(first, second)
    assert not torch.equal(start, trained)


def test_a_new_layer_that_no_optimizer_has_is_nobodys_business():
    def work(comm):
        model, _, pace = wrapped(comm)
        model.append(layer_of(comm))
        train(comm, model, pace, 1)
        return pace.steps

    assert run_ranks(2, work) == [1, 1]

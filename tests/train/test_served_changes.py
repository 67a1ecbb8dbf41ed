"""Rule server when a user changes parameters between steps: servers get the change, or step() raises."""

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import WorkloadError
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train import evaluate
from paceline.train.pace import Pace
from paceline.train.serve import serve
from tests.train.problems import batches, flat, loss_of, mlp

RULES = ["server", "server(staleness=2)"]


def on_ranks(work):
    return run_ranks(2, work, servers=1, serve=serve)[:2]


def wrapped(comm, rule="server"):
    model = mlp()
    run = Run(workers=comm.size, rule=rule, exchange="ps(servers=1, colocated=false)", schedule="wfbp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, Pace(model, optimizer, comm=comm, axes=compose(run).axes)


def train(model, pace, steps, weight=1.0, after=lambda model: None):
    """With weight 0, on gradients that are zero; `after` is done after every step."""
    for x, y in batches(steps=steps):
        (weight * loss_of(model, x, y)).backward()
        pace.step()
        after(model)


@torch.no_grad()
def clamp(model):
    for parameter in model.parameters():
        parameter.clamp_(-0.05, 0.05)


def clamp_data(model):
    """Change .data, which no version counter records."""
    for parameter in model.parameters():
        parameter.data.clamp_(-0.05, 0.05)


def replace(model):
    torch.nn.utils.vector_to_parameters(flat(model).float() + 1, model.parameters())


def load(model):
    model.load_state_dict(mlp(seed=1).state_dict())


@pytest.mark.parametrize("change", [clamp, clamp_data, replace, load])
@pytest.mark.parametrize("rule", RULES)
def test_a_change_that_servers_have_not_seen_is_an_error_that_says_how_to_tell_them(rule, change):
    def work(comm):
        model, optimizer, pace = wrapped(comm, rule)
        train(model, pace, 2)
        comm.barrier()
        change(model)
        changed = flat(model)
        with pytest.raises(WorkloadError, match=r"was changed after step 2.*load_state_dict\(pace.state_dict\(\)\)"):
            train(model, pace, 1)
        optimizer.zero_grad()
        pace.load_state_dict(pace.state_dict())
        train(model, pace, 2, weight=0.0)
        return pace.steps, changed, flat(model)

    found = on_ranks(work)
    for steps, _, weights in found:
        assert steps == 4
        assert torch.equal(weights, found[0][1]), "not what rank 0 had after the change"


def test_a_change_before_the_first_step_counts():
    def work(comm):
        model, _, pace = wrapped(comm)
        load(model)
        train(model, pace, 2, weight=0.0)
        return flat(model)

    for weights in on_ranks(work):
        assert torch.equal(weights, flat(mlp(seed=1)))


@pytest.mark.parametrize("rule", RULES)
def test_what_is_changed_and_put_back_is_no_change(rule):
    def work(comm):
        model, optimizer, pace = wrapped(comm, rule)

        def look(model):
            with pace.averaged(), evaluate.averaged_parameters(model, comm):
                pass
            kept = {name: value.clone() for name, value in model.state_dict().items()}
            load(model)
            model.load_state_dict(kept)
            optimizer.load_state_dict(optimizer.state_dict())
            pace.state_dict()

        train(model, pace, 4, after=look)
        return pace.steps

    assert on_ranks(work) == [4, 4]


def test_parameters_that_are_no_numbers_are_not_taken_for_a_change():
    def work(comm):
        model, _, pace = wrapped(comm)
        train(model, pace, 3, weight=float("nan"))
        return pace.steps, bool(flat(model).isnan().all())

    assert on_ranks(work) == [(3, True)] * 2


def test_a_step_without_any_gradient_sees_a_change_too():
    def work(comm):
        model, _, pace = wrapped(comm)
        train(model, pace, 1)
        clamp(model)
        with pytest.raises(WorkloadError, match="was changed after step 1"):
            pace.step()

    on_ranks(work)


def test_a_change_while_gradients_add_up_is_seen():
    def work(comm):
        model = nn.Linear(2, 1)
        run = Run(workers=comm.size, rule="server", exchange="ps(servers=1, colocated=false)", accumulate=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = Pace(model, optimizer, comm=comm, axes=compose(run).axes, accumulate=2)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            pace.step()
        model(torch.ones(1, 2)).sum().backward()
        pace.step()
        with torch.no_grad():
            model.weight.add_(1)
        with pytest.raises(WorkloadError, match="weight was changed after step 1"):
            model(torch.ones(1, 2)).sum().backward()

    on_ranks(work)

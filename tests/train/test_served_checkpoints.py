"""Rule server and checkpoints: a job that goes on from one, and one that goes back to one while it runs."""

import copy
import threading
import time

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.rules.server import largest_lead
from paceline.train.pace import Pace
from paceline.train.serve import StepCounts, serve
from tests.train.problems import batches, flat, loss_of, mlp

RULES = ["server", "server(staleness=1)", "server(staleness=2)", "server(async)"]
OFTEN = "wfbp"  # several chunks per step


def on_ranks(size, work):
    return run_ranks(size, work, servers=2, serve=serve)[:size]


def wrapped(comm, rule, lr=0.1):
    model = mlp()
    run = Run(workers=comm.size, rule=rule, exchange="ps(servers=2, colocated=false)", schedule=OFTEN)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return model, optimizer, Pace(model, optimizer, comm=comm, axes=compose(run).axes)


def train(model, pace, steps, seconds=0.0, weight=1.0):
    """Steps that take at least some seconds each; with weight 0, on gradients that are zero."""
    for x, y in batches(steps=steps):
        time.sleep(seconds)
        (weight * loss_of(model, x, y)).backward()
        pace.step()


def saved(model, optimizer, pace):
    return copy.deepcopy([model.state_dict(), optimizer.state_dict(), pace.state_dict()])


def load(state, *holders):
    for part, holder in zip(state, holders, strict=True):
        holder.load_state_dict(part)


def gone_on(comm, rule):
    """A fresh job from a checkpoint of step 100; rank 0 is slow."""
    model, optimizer, pace = wrapped(comm, rule)
    state = saved(model, optimizer, pace)
    state[2]["steps"] = state[2]["rule"]["steps"] = 100
    load(state, model, optimizer, pace)
    train(model, pace, 8, 0.03 if comm.rank == 0 else 0.0)
    return pace.steps, pace.duty.pushed, pace.duty.pulled


@pytest.mark.parametrize("rule", RULES)
def test_a_job_goes_on_from_a_checkpoint(rule):
    assert [steps for steps, _, _ in on_ranks(3, lambda comm: gone_on(comm, rule))] == [108] * 3


def test_the_bound_holds_in_a_job_that_goes_on_from_a_checkpoint():
    _, pushed, pulled = zip(*on_ranks(3, lambda comm: gone_on(comm, "server(staleness=2)")), strict=True)
    assert 1 <= largest_lead(pushed, pulled) <= 2


def gone_back(comm, rule, loading):
    """After 4 steps each rank loads parameters of its own; rank 0 has a push to come when rank 1 does so."""
    model, optimizer, pace = wrapped(comm, rule)
    state = saved(model, optimizer, pace)
    state[0] = mlp(seed=1 + comm.rank).state_dict()
    train(model, pace, 3)
    if comm.rank == 0 and rule != "server":
        assert loading.wait(30)
    train(model, pace, 1)
    before = flat(model)
    if comm.rank == 1:
        loading.set()
    load(state, model, optimizer, pace)
    loaded = pace.steps
    train(model, pace, 2, weight=0.0)
    return before, loaded, pace.steps, flat(model)


@pytest.mark.parametrize("rule", RULES)
def test_parameters_that_a_running_job_loads_are_those_of_servers_and_workers(rule):
    """With gradients of zero they stay as loaded: no push from before counts, and no momentum either."""
    loading = threading.Event()
    before, loaded, steps, after = zip(*on_ranks(2, lambda comm: gone_back(comm, rule, loading)), strict=True)
    assert loaded == (0, 0)
    assert steps == (2, 2)
    for weights in after:
        assert torch.equal(weights, flat(mlp(seed=1))), "rank 0's are taken"
    assert torch.equal(*before) == (rule == "server"), "the last push of rank 0 moved what rank 0 got"


@pytest.mark.parametrize("rule", RULES[1:])
def test_a_running_job_can_go_back_again_and_again(rule):
    def work(comm):
        model, optimizer, pace = wrapped(comm, rule)
        for seed in (1, 2, 1):
            state = saved(model, optimizer, pace)
            state[0] = mlp(seed=seed).state_dict()
            train(model, pace, 2, 0.01 * comm.rank)
            load(state, model, optimizer, pace)
            load(state, model, optimizer, pace)
        train(model, pace, 1, weight=0.0)
        return flat(model)

    for weights in on_ranks(3, work):
        assert torch.equal(weights, flat(mlp(seed=1)))


def test_a_learning_rate_that_a_running_job_loads_is_that_of_servers():
    def work(comm):
        model, optimizer, pace = wrapped(comm, "server(async)", lr=0.0)
        state = saved(model, optimizer, pace)
        optimizer.param_groups[0]["lr"] = 0.1
        train(model, pace, 2)
        load(state, model, optimizer, pace)
        train(model, pace, 2)
        return flat(model)

    for weights in on_ranks(2, work):
        assert torch.equal(weights, flat(mlp()))


def unevenly_back(comm):
    """Rank 1 makes two steps more before it loads, and is the slow one from then on."""
    model, optimizer, pace = wrapped(comm, "server(staleness=2)")
    state = saved(model, optimizer, pace)
    made = 1 + 2 * comm.rank
    train(model, pace, made)
    load(state, model, optimizer, pace)
    train(model, pace, 8, 0.03 if comm.rank == 1 else 0.0)
    return pace.duty.pushed[made:], pace.duty.pulled[made:]


def test_the_bound_counts_from_where_a_running_job_went_back():
    pushed, pulled = zip(*on_ranks(2, unevenly_back), strict=True)
    assert 1 <= largest_lead(pushed, pulled) <= 2


def test_a_step_counts_when_its_last_chunk_is_done():
    counts = StepCounts(range(2))
    counts.count(0, chunks=2)
    assert counts.allow(0, bound=1)
    counts.count(0, chunks=2)
    assert not counts.allow(0, bound=1)
    assert counts.allow(1, bound=1)
    counts.leave(1)
    assert counts.allow(0, bound=1)

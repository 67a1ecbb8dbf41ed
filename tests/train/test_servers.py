"""Parameter servers: the same weights as all-reduce, and rules that update on the servers."""

import time

import pytest
import torch

from paceline.comm.service import LONGEST_TEXT, Attendant, ServerOrder
from paceline.comm.thread import ThreadComm, ThreadGroup, run_ranks
from paceline.errors import WorkloadError, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.rules.server import check_optimizer, largest_lead
from paceline.train.pace import Pace
from paceline.train.serve import serve
from tests.train.problems import alone, batches, flat, loss_of, mlp, together

DEDICATED = "ps(servers=2, colocated=false)"
EXCHANGES = [
    *("allreduce", "ps", "ps(servers=1)", "ps(servers=2)", "ps(servers=N)", "ps(servers=1, colocated=false)"),
    *("hierarchical(2x2)", "hierarchical(2x2x2)"),
]


def on_ranks(size, work, servers):
    return run_ranks(size, work, servers=servers, serve=serve)[:size]


@pytest.mark.parametrize("size", [2, 3, 4, 8])
@pytest.mark.parametrize("exchange", EXCHANGES)
def test_every_consensus_exchange_gives_the_weights_of_one_process(size, exchange):
    exchange = exchange.replace("N", str(size))
    if exchange.startswith("hier") and 2 ** len(exchange.split("x")) != size:
        return
    servers = compose(Run(workers=size, exchange=exchange)).axes.exchange.servers
    expected = alone(lambda: mlp(), lambda: batches())
    found = on_ranks(size, lambda comm: together(comm, mlp, batches, exchange=exchange, schedule="wfbp"), servers)
    for weights in found:
        assert torch.equal(weights, found[0]), "replicas differ"
        assert (weights - expected).abs().max() <= 1e-6


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adamw"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_synchronous_server_equals_one_process(size, optimizer):
    axes = {"rule": "server", "exchange": "ps(servers=1, colocated=false)", "schedule": "wfbp"}
    make, data = lambda: mlp(torch.float64), lambda: batches(torch.float64)
    expected = alone(make, data, optimizer)
    for weights in on_ranks(size, lambda comm: together(comm, make, data, optimizer, **axes), 1):
        assert (weights - expected).abs().max() <= 1e-12


def with_groups_and_scheduler(comm, rule, exchange):
    """Two parameter groups with their own settings, and a learning rate that falls."""
    model = mlp(torch.float64)
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "weight_decay": 0.1}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    pace = Pace(model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, rule=rule, exchange=exchange)).axes)
    for x, y in batches(torch.float64, steps=9):
        share = slice(comm.rank * 12, comm.rank * 12 + 12)
        loss_of(model, x[share], y[share]).backward()
        pace.step()
        scheduler.step()
    return flat(model)


def test_a_server_follows_parameter_groups_and_the_scheduler():
    plain = on_ranks(2, lambda comm: with_groups_and_scheduler(comm, "grad", "allreduce"), 0)
    served = on_ranks(2, lambda comm: with_groups_and_scheduler(comm, "server", DEDICATED), 2)
    assert (plain[0] - served[0]).abs().max() <= 1e-12


def uneven(comm, staleness, steps=8):
    """Rank 0 is slow; when its gradients left and when parameters were back, on every rank."""
    model = mlp()
    axes = compose(Run(workers=comm.size, rule=f"server(staleness={staleness})", exchange=DEDICATED)).axes
    pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
    for x, y in batches(steps=steps):
        time.sleep(0.03 if comm.rank == 0 else 0)
        loss_of(model, x, y).backward()
        pace.step()
    return pace.duty.pushed, pace.duty.pulled


@pytest.mark.parametrize("staleness", ["1", "3"])
def test_nobody_gets_further_ahead_than_the_bound(staleness):
    pushed, pulled = zip(*on_ranks(3, lambda comm: uneven(comm, staleness), 2), strict=True)
    assert 1 <= largest_lead(pushed, pulled) <= int(staleness)


def test_without_a_bound_the_fast_ones_do_get_ahead():
    """The control of the test above: the slow rank is slow enough to be overtaken."""
    pushed, pulled = zip(*on_ranks(3, lambda comm: uneven(comm, "async"), 2), strict=True)
    assert largest_lead(pushed, pulled) > 3


def test_the_lead_counts_steps_that_the_slowest_has_not_pushed():
    assert largest_lead([[1.0, 2.0], [1.5, 9.0]], [[1.1, 2.1], [1.6, 9.1]]) == 1
    assert largest_lead([[1.0, 2.0, 3.0], [8.0]], [[1.1, 2.1, 3.1], [8.1]]) == 3
    steps = [float(step) for step in range(100_000)]  # of a long training: not every step with every other
    assert largest_lead([steps, steps], [steps, steps]) == 0


def test_an_optimizer_that_needs_whole_tensors_is_refused():
    with pytest.raises(WrongCommand, match="element by element"):
        check_optimizer(torch.optim.LBFGS([torch.zeros(1, requires_grad=True)]))


class Mine(torch.optim.SGD):
    """An optimizer of a user's own."""


def test_an_optimizer_that_servers_do_not_know_is_refused():
    with pytest.raises(WrongCommand, match="element by element"):
        check_optimizer(Mine([torch.zeros(1, requires_grad=True)], lr=0.1))


def test_an_exchange_with_servers_needs_a_job_with_servers():
    with pytest.raises(WrongCommand, match="started with 0 server processes"):
        run_ranks(1, lambda comm: together(comm, mlp, batches, exchange="ps(servers=1)"))


@pytest.mark.parametrize("call", ["synchronize", "closure"])
def test_what_needs_the_gradient_is_refused_with_rule_server(call):
    def work(comm):
        model = mlp()
        axes = compose(Run(workers=1, rule="server", exchange="ps(servers=1, colocated=false)")).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        x, y = next(iter(batches()))
        loss_of(model, x, y).backward()
        pace.synchronize() if call == "synchronize" else pace.step(lambda: loss_of(model, x, y))

    with pytest.raises(WrongCommand, match="servers"):
        run_ranks(1, work, servers=1, serve=serve)


def test_a_second_backward_before_the_step_is_told_as_with_other_rules():
    def work(comm):
        model = mlp()
        axes = compose(Run(workers=1, rule="server", exchange="ps(servers=1, colocated=false)")).axes
        Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        x, y = next(iter(batches()))
        for _ in range(2):
            loss_of(model, x, y).backward()

    with pytest.raises(WorkloadError, match=r"got a second gradient.*\(loss1 \+ loss2\)"):
        on_ranks(1, work, 1)


def test_a_text_of_absurd_length_is_refused_before_memory_is_taken():
    attendant = Attendant(ThreadComm(0, ThreadGroup(1)), 1)
    with pytest.raises(ValueError, match="a text of"):
        attendant.text(ServerOrder("text", (LONGEST_TEXT + 1,)))


def test_a_worker_that_fails_does_not_leave_servers_waiting():
    def work(comm):
        uneven(comm, "async", steps=2)
        if comm.rank == 1:
            raise RuntimeError("rank 1 has had enough")
        comm.service.comm.barrier(1)

    with pytest.raises(RuntimeError, match="had enough"):
        run_ranks(2, work, servers=2, serve=serve)


def test_servers_that_need_not_keep_step_look_after_one_model():
    def work(comm):
        for _ in range(2):
            uneven(comm, "async", steps=1)

    with pytest.raises(WrongCommand, match="servers hold one model only"):
        run_ranks(2, work, servers=2, serve=serve)

"""What every rule promises, over its MENU: on threads, with quadratics and a small network."""

import copy
import time

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import rules
from paceline.train.pace import Pace
from paceline.train.serve import serve
from tests.train.problems import alone, batches, flat, loss_of, mlp

EXCHANGES = {
    "consensus": "allreduce",
    "doubly stochastic": "neighbor(ring)",
    "symmetric": "neighbor(ring)",
    "neighbors": "neighbor(star)",
    "servers": "ps(servers=1, colocated=false)",
}


def pace_of(comm, model, optimizer, **axes):
    run = Run(workers=comm.size, **axes)
    return Pace(model, optimizer, comm=comm, axes=compose(run).axes)


def on_ranks(size, rule, work):
    """With the servers that the rule needs."""
    servers = 1 if rules.MENU.make(rule).needs == "servers" else 0
    return run_ranks(size, work, servers=servers, serve=serve)[:size]


def exchange_of(rule):
    return EXCHANGES[rules.MENU.make(rule).needs]


def quadratic(comm, rule, exchange, *, lr=0.1, steps=250, h=None, c=None, **sgd):
    """f_i(x) = h_i (x - c_i)^2 / 2 from x = 0, in float64; this rank's x at the end."""
    h = (h or [1.0, 2.0, 3.0, 4.0, 5.0])[comm.rank]
    c = (c or [1.0, 2.0, 3.0, 4.0, 5.0])[comm.rank]
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **sgd)
    pace = pace_of(comm, model, optimizer, rule=rule, exchange=exchange)
    for _ in range(steps):
        (h * (model.weight - c) ** 2 / 2).sum().backward()
        assert pace.step()
    return float(model.weight.detach())


STREAMING = "diloco(every=6, fragments=3, delay=2, mixing=0.5)"
OPTIMUM = sum(k * k for k in range(1, 6)) / 15  # of five ranks


@pytest.mark.parametrize(
    "rule", [*rules.MENU.names(), "atc(every=3)", "awc(global_every=4)", "diloco(every=5)", STREAMING]
)
def test_the_loss_of_a_small_network_falls(rule):
    def work(comm):
        model = mlp()
        pace = pace_of(comm, model, torch.optim.SGD(model.parameters(), lr=0.2), rule=rule, exchange=exchange_of(rule))
        losses = []
        x, y = next(batches())
        share = slice(comm.rank * 8, comm.rank * 8 + 8)
        for _ in range(40):
            loss = loss_of(model, x[share], y[share])
            loss.backward()
            pace.step()
            losses.append(float(loss.detach()))
        return losses

    for losses in on_ranks(3, rule, work):
        assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("rule", rules.MENU.names())
def test_one_rank_alone_is_plain_training(rule):
    expected = alone(mlp, batches)

    def work(comm):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        text = f"{rule}(every=1, lr=1, momentum=0)" if rule == "diloco" else rule
        pace = pace_of(comm, model, optimizer, rule=text, exchange=exchange_of(rule))
        for x, y in batches():
            loss_of(model, x, y).backward()
            pace.step()
        return flat(model)

    (weights,) = on_ranks(1, rule, work)
    assert (weights - expected).abs().max() < 1e-5


@pytest.mark.parametrize("rule", rules.MENU.names())
def test_a_rule_prints_as_it_is_read(rule):
    member = rules.MENU.make(rule)
    assert rules.MENU.make(str(member)) == member


@pytest.mark.parametrize("rule", rules.MENU.names())
def test_the_state_of_a_rule_survives_a_checkpoint(rule):
    """Train 6 steps; or 3, save, and 3 more in fresh objects: the same weights."""

    # With rule server the state of the optimizer is on the servers, and no worker can save it.
    momentum = 0.0 if rule == "server" else 0.9

    def train(comm, data, saved=None):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
        if saved:
            model.load_state_dict(saved[0])
        text = f"{rule}(every=2)" if rule == "diloco" else rule
        pace = pace_of(comm, model, optimizer, rule=text, exchange=exchange_of(rule))
        if saved:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            pace.load_state_dict(saved[2])
        for x, y in data:
            share = slice(comm.rank * 12, comm.rank * 12 + 12)
            loss_of(model, x[share], y[share]).backward()
            pace.step()
        return copy.deepcopy((model.state_dict(), optimizer.state_dict(), pace.state_dict()))

    def work(comm):
        data = list(batches(steps=6))
        whole = train(comm, data)[0]
        halves = train(comm, data[3:], train(comm, data[:3]))[0]
        return max(float((whole[key] - halves[key]).abs().max()) for key in whole)

    assert max(on_ranks(2, rule, work)) < 1e-6


def test_exact_diffusion_and_gradient_tracking_reach_the_optimum():
    for rule in ("exact_diffusion", "gradient_tracking"):
        for value in run_ranks(5, lambda comm, rule=rule: quadratic(comm, rule, "neighbor(ring)")):
            assert value == pytest.approx(OPTIMUM, abs=1e-8)


@pytest.mark.parametrize("rule", ["atc", "awc"])
def test_atc_and_awc_stop_at_their_known_bias(rule):
    """The fixed point of the formula, solved directly."""
    n, lr = 5, 0.1
    mixing = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in (i - 1, i, i + 1):
            mixing[i, j % n] += 1 / 3
    h = torch.arange(1.0, n + 1, dtype=torch.float64)
    left = mixing if rule == "atc" else torch.eye(n, dtype=torch.float64)
    fixed = torch.linalg.solve(torch.eye(n, dtype=torch.float64) - mixing + lr * left @ h.diag(), lr * left @ (h * h))
    found = run_ranks(n, lambda comm: quadratic(comm, rule, "neighbor(ring)", lr=lr))
    assert found == pytest.approx(fixed.tolist(), abs=1e-9)
    assert max(abs(value - OPTIMUM) for value in found) > 1e-2


def test_gradient_tracking_works_on_directed_graphs_and_keeps_its_sum():
    def work(comm):
        value = quadratic(comm, "gradient_tracking", "neighbor(exp2)")
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
        pace = pace_of(comm, model, optimizer, rule="gradient_tracking", exchange="neighbor(exp2)")
        pairs = []
        for _ in range(5):
            (comm.rank * (model.weight - 1) ** 2).sum().backward()
            gradient = float(model.weight.grad)
            pace.step()
            pairs.append((float(pace.duty.q[0]), gradient))
        return value, pairs

    found = run_ranks(5, work)
    assert [value for value, _ in found] == pytest.approx([OPTIMUM] * 5, abs=1e-8)
    for step in zip(*(pairs for _, pairs in found), strict=True):
        assert sum(q for q, _ in step) == pytest.approx(sum(g for _, g in step), abs=1e-12)


@pytest.mark.parametrize(
    "sgd", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "weight_decay": 0.1}]
)
def test_atc_with_full_averaging_equals_grad(sgd):
    for exchange in ("allreduce", "neighbor(full)", "hierarchical(2x2)"):
        atc = run_ranks(4, lambda comm, e=exchange: quadratic(comm, "atc", e, steps=50, **sgd))
        grad = run_ranks(4, lambda comm: quadratic(comm, "grad", "allreduce", steps=50, **sgd))
        assert atc == pytest.approx(grad, abs=1e-12)


def test_push_sum_finds_the_true_mean_on_an_irregular_graph():
    # equal curvatures: the optimum is the mean of c, and every rank must come near it
    found = run_ranks(
        5, lambda comm: quadratic(comm, "push_sum", "neighbor(star(uniform=true))", lr=0.004, steps=1200, h=[1.0] * 5)
    )
    assert found == pytest.approx([3.0] * 5, abs=0.1)  # the bias shrinks with lr


def test_push_sum_keeps_its_mass():
    def work(comm):
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(model.weight, 1.0)
        pace = pace_of(
            comm, model, torch.optim.SGD(model.parameters(), lr=0.1), rule="push_sum", exchange="neighbor(star)"
        )
        masses = []
        for _ in range(10):
            (model.weight * 0).sum().backward()
            pace.step()
            masses.append((float(pace.duty.x[0]), pace.duty.p))
        return masses

    for step in zip(*run_ranks(4, work), strict=True):
        assert sum(x for x, _ in step) == pytest.approx(4.0, abs=1e-12)
        assert sum(p for _, p in step) == pytest.approx(4.0, abs=1e-12)


def test_diloco_is_an_outer_nesterov_step_on_the_mean_difference():
    def work(comm):
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = pace_of(comm, model, optimizer, rule="diloco(every=2, lr=0.7, momentum=0.9)")
        for _ in range(4):
            (model.weight * (comm.rank + 1)).sum().backward()
            pace.step()
        return float(model.weight.detach())

    # every block moves the mean by -0.1 * 1.5 * 2 = -0.3; delta = 0.3; Nesterov: g + 0.9 b
    first = -0.7 * (0.3 + 0.9 * 0.3)
    second = first - 0.7 * (0.3 + 0.9 * (0.9 * 0.3 + 0.3))
    assert run_ranks(2, work) == pytest.approx([second, second], abs=1e-12)


def test_local_steps_stay_local_and_a_global_average_makes_ranks_equal():
    apart = run_ranks(4, lambda comm: quadratic(comm, "atc(every=4)", "neighbor(ring)", steps=3))
    assert len(set(apart)) == 4
    together = run_ranks(4, lambda comm: quadratic(comm, "atc(global_every=3)", "neighbor(ring)", steps=3))
    assert len(set(together)) == 1


def over_window(comm, rule, exchange, steps=60, **axes):
    """Ranks that differ, without gradients, each at its speed, then in step; value, duty and what is unread."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, float(comm.rank))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pace = pace_of(comm, model, optimizer, rule=rule, exchange=exchange, **axes)
    with torch.no_grad():
        model.weight.fill_(float(comm.rank))  # ranks start equal; here they shall not
    for _ in range(steps):
        (model.weight * 0).sum().backward()
        time.sleep(1e-4 * comm.rank)
        pace.step()
    for _ in range(30):  # however ranks were scheduled so far, these bring them together
        comm.barrier()
        (model.weight * 0).sum().backward()
        pace.step()
    comm.barrier()
    arrived = [sum(parts) for parts in zip(*unread(pace), strict=True)] or [0.0, 0.0]
    return float(model.weight.detach()), pace.duty, arrived


def unread(pace):
    """x and p in each buffer of this rank that nobody has read yet."""
    found = pace.state_dict()["engines"][0]["channel"]["arrived"]
    return [tensor.tolist() for buffers in found.values() for tensor in buffers.values()]


@pytest.mark.parametrize("exchange", ["window(star)", "window(one_peer(exp2))", "window(one_way_ring)"])
def test_push_sum_over_a_window_keeps_its_mass_and_finds_the_mean(exchange):
    found = run_ranks(4, lambda comm: over_window(comm, "push_sum", exchange, schedule="bsp"))
    assert sum(float(duty.x[0]) + x for _, duty, (x, _) in found) == pytest.approx(0 + 1 + 2 + 3, abs=1e-12)
    assert sum(duty.p + p for _, duty, (_, p) in found) == pytest.approx(4, abs=1e-12)
    assert [value for value, _, _ in found] == pytest.approx([1.5] * 4, abs=0.01)


@pytest.mark.parametrize("rule", ["atc", "awc"])
def test_averaging_over_a_window_brings_ranks_together(rule):
    found = run_ranks(4, lambda comm: over_window(comm, rule, "window(one_peer(exp2))"))
    values = [value for value, _, _ in found]
    assert max(values) - min(values) < 0.01 * 3
    assert all(0 <= value <= 3 for value in values)


def test_what_had_arrived_survives_a_checkpoint():
    """Mass that lies unread in buffers is saved with the rest, and not counted twice after a restore."""

    def work(comm):
        model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pace = pace_of(comm, model, optimizer, rule="push_sum", exchange="window(ring)", schedule="bsp")
        masses = []
        for part in range(3):
            for _ in range(5):
                (model.weight * 0).sum().backward()
                pace.step()
            comm.barrier()
            if part == 0:
                saved = copy.deepcopy((model.state_dict(), pace.state_dict()))
            masses.append(pace.duty.p + sum(p for _, p in unread(pace)))
            comm.barrier()
            if part == 1:
                model.load_state_dict(saved[0])
                pace.load_state_dict(saved[1])
        return masses

    for masses in zip(*run_ranks(3, work), strict=True):
        assert sum(masses) == pytest.approx(3, abs=1e-12)

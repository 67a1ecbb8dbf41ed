"""Averaging in half precision: numbers are added in float32 and rounded once, so equal models stay equal."""

import pytest
import torch
from torch import nn

import paceline as calls
from paceline.api import join as joining
from paceline.api import window as windows
from paceline.comm.sums import mix_into
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import Refused
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import exchanges, rules, topologies
from paceline.train.evaluate import averaged_parameters
from paceline.train.pace import Pace

SIZE, NODES = 6, "2x3"
DTYPES = (torch.bfloat16, torch.float16)
EDGES = "0 1\n1 2\n2 3\n3 4\n4 5\n5 0\n0 3\n"
TOPOLOGIES = topologies.MENU.names()
LOCAL = [rule for rule in rules.MENU.names() if rule not in ("grad", "server")]  # the rules that average parameters
EXCHANGES = ["allreduce", "ps", "hierarchical", "hierarchical(3x2)"]
EXCHANGES += [f"{kind}({name})" for kind in ("neighbor", "window") for name in TOPOLOGIES]
EXCHANGES += [f"hierarchical(neighbor({name}))" for name in TOPOLOGIES if name not in ("inner_outer", "graph")]


def values(dtype, numel=3000):
    """Numbers of many magnitudes, each once with every mantissa that the dtype may have had."""
    dice = torch.Generator().manual_seed(3)
    return (torch.randn(numel, generator=dice) * 2.0 ** torch.randint(-8, 4, (numel,), generator=dice)).to(dtype)


class Vector(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(values(dtype))
        self.bias = nn.Parameter(torch.ones(3))  # float32 beside half precision


def rounded_once(found, exact):
    """Whether every element is within half a unit in the last place of bf16, and a little for adding in float32."""
    return bool(((found.double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-6).all())


def mixed(comm, axes, dtype, steps):
    """The weight after steps that average and learn nothing; its momentum and its gradient are zero."""
    model = Vector(dtype)
    pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.5), comm=comm, axes=axes)
    for _ in range(steps):
        ((model.weight * 0).sum() + (model.bias * 0).sum()).backward()
        pace.step()
    return model.weight.detach()


def axes_of(rule, exchange, tmp_path):
    """None where compose refuses the two together."""
    edges = tmp_path / "edges.txt"
    edges.write_text(EDGES)
    try:
        exchange = exchange.replace("graph", f"graph({edges})")
        return compose(Run(workers=SIZE, nodes=NODES, rule=rule, exchange=exchange, schedule="bsp")).axes
    except Refused:
        return None


def placed(work):
    def body(comm):
        comm.placement = Run(workers=SIZE, nodes=NODES).cluster.nodes
        return work(comm)

    return body


def test_every_exchange_is_tried():
    assert {exchanges.MENU.make(text.replace("graph", "ring")).name for text in EXCHANGES} == set(
        exchanges.MENU.names()
    )


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_models_stay_equal(exchange, dtype, tmp_path):
    tried = 0
    for rule in [*LOCAL, "atc(global_every=2)", "diloco(every=2)"]:
        axes = axes_of(rule, exchange, tmp_path)
        if axes is not None:
            tried += 1
            for found in run_ranks(SIZE, placed(lambda comm, axes=axes: mixed(comm, axes, dtype, steps=4))):
                assert torch.equal(found, values(dtype)), rule
    assert tried


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rule", "exchange"),
    [
        ("atc", "neighbor(full)"),
        ("awc", "neighbor(star)"),
        ("awc", "allreduce"),
        ("atc", "hierarchical(neighbor(ring))"),
        ("atc", "window(ring)"),
        ("push_sum", "window(one_way_ring)"),
    ],
)
def test_300_mixings_keep_the_norm(rule, exchange, dtype, tmp_path):
    axes = axes_of(rule, exchange, tmp_path)
    for found in run_ranks(SIZE, placed(lambda comm: mixed(comm, axes, dtype, steps=300))):
        assert float(found.double().norm() / values(dtype).double().norm()) == pytest.approx(1, abs=0.01)
        assert torch.equal(found, values(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.float8_e5m2])
def test_six_equal_vectors_mix_to_themselves(dtype):
    x = values(dtype, 300_000)  # more than two blocks
    out = torch.empty_like(x)
    mix_into(out, x, 1 / 6, [(x, 1 / 6)] * 5)
    assert torch.equal(out.float(), x.float())


def test_a_mix_is_rounded_once():
    parts = [values(torch.bfloat16).roll(k) for k in range(6)]
    out = torch.empty_like(parts[0])
    mix_into(out, parts[0], 1 / 6, [(part, 1 / 6) for part in parts[1:]])
    assert rounded_once(out, sum(part.double() for part in parts) / 6)


def test_the_mean_of_different_models_is_rounded_once(tmp_path):
    axes = axes_of("atc", "allreduce", tmp_path)

    def work(comm):
        model = Vector(torch.bfloat16)
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.5), comm=comm, axes=axes)
        with torch.no_grad():
            model.weight.copy_(values(torch.bfloat16).roll(comm.rank))
        ((model.weight * 0).sum() + (model.bias * 0).sum()).backward()
        pace.step()
        return model.weight.detach()

    exact = sum(values(torch.float64).bfloat16().double().roll(rank) for rank in range(SIZE)) / SIZE
    for found in run_ranks(SIZE, placed(work)):
        assert rounded_once(found, exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_round_once(dtype):
    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        x = values(dtype)
        found = [
            calls.allreduce(x),
            calls.neighbor_allreduce(x, topology="star"),
            calls.hierarchical_neighbor_allreduce(x, topology="ring"),
            calls.allreduce(x, wait=False).wait(),
        ]
        return [torch.equal(y, x) and y.dtype == dtype for y in found]

    assert run_ranks(SIZE, placed(work)) == [[True] * 4] * SIZE


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_keep_mass_in_float32(dtype):
    def work(comm):
        joining._current.set(joining.Worker(comm, CpuDevice()))
        window = windows.window(values(dtype), topology="star")
        for _ in range(50):
            window.accumulate()
            comm.barrier()
            window.collect()
            comm.barrier()
        mean, put = window.mean, windows.window(values(dtype), topology="ring")
        for _ in range(20):
            put.put()
            put.update()
        return [torch.equal(y, values(dtype)) and y.dtype == dtype for y in (mean, put.x)]

    assert run_ranks(SIZE, work) == [[True] * 2] * SIZE


@pytest.mark.parametrize("dtype", DTYPES)
def test_models_are_averaged_for_evaluation_in_float32(dtype):
    def work(comm):
        model = Vector(dtype)
        with averaged_parameters(model, comm):
            return model.weight.detach().clone()

    for found in run_ranks(SIZE, work):
        assert torch.equal(found, values(dtype))

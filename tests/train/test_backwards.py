"""Unusual backwards: several before a step, through checkpoints, and with a graph of their own."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.comm.thread import run_ranks
from paceline.errors import WorkloadError
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace
from paceline.train.serve import serve
from tests.train.problems import batches, build, flat, loss_of, mlp

SERVERS = "ps(servers=1, colocated=false)"
LOCAL = {
    "atc": "neighbor(ring)",
    "awc": "neighbor(ring)",
    "exact_diffusion": "neighbor(ring)",
    "gradient_tracking": "neighbor(ring)",
    "push_sum": "neighbor(ring)",
    "push_diging": "neighbor(ring)",
    "diloco(every=2)": "allreduce",
}


def trained(comm, axes, backward, make=mlp, steps=4, **settings):
    """The parameters after steps of this rank's own share of each batch."""
    run = Run(workers=comm.size, optimizer="sgd(lr=0.1)", **axes)
    model = make()
    pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=compose(run).axes, **settings)
    for x, y in batches(torch.float64, steps=steps):
        backward(model, x[comm.rank :: comm.size], y[comm.rank :: comm.size], pace)
        pace.step()
    pace.finish()
    return flat(model)


def on_ranks(axes, backward, make=None, ranks=2, **settings):
    servers = int(axes.get("rule") == "server")
    make = make or (lambda: mlp(torch.float64))
    work = lambda comm: trained(comm, axes, backward, make, **settings)  # noqa: E731
    return run_ranks(ranks, work, servers=servers, serve=serve)[:ranks]


def close(found, expected):
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(found, expected, strict=True))


def two_losses(model, x, y):
    return loss_of(model, x, y), model(x).square().mean()


def summed(model, x, y, pace):
    sum(two_losses(model, x, y)).backward()


def one_by_one(model, x, y, pace):
    for loss in two_losses(model, x, y):
        loss.backward()


@pytest.mark.parametrize("schedule", ["fusion", "wfbp", "bsp"])
def test_every_backward_exchanges_what_it_added(schedule):
    axes = {"rule": "grad", "schedule": schedule}
    assert close(on_ranks(axes, one_by_one), on_ranks(axes, summed))


@pytest.mark.parametrize("rule", LOCAL)
def test_rules_that_update_locally_take_several_backwards_as_their_sum(rule):
    axes = {"rule": rule, "exchange": LOCAL[rule]}
    assert close(on_ranks(axes, one_by_one), on_ranks(axes, summed))


@pytest.mark.parametrize("rule", ["atc", "awc"])
def test_several_backwards_are_summed_while_accumulating_averages(rule):
    def halves(model, x, y, pace):
        for part in (slice(0, 6), slice(6, 12)):
            one_by_one(model, x[part], y[part], pace)
            if part.start == 0:
                assert not pace.step()

    axes = {"rule": rule, "exchange": LOCAL[rule], "accumulate": 2}
    whole = on_ranks({"rule": rule, "exchange": LOCAL[rule]}, summed)
    assert close(on_ranks(axes, halves, accumulate=2), whole)


@pytest.mark.parametrize(
    "axes",
    [{"rule": "grad", "schedule": "priority"}, {"rule": "server", "exchange": SERVERS}],
    ids=str,
)
def test_gradients_that_have_left_refuse_another_and_say_what_keeps_the_result(axes):
    with pytest.raises(WorkloadError, match=r"\(loss1 \+ loss2\)\.backward\(\).*which averages.*use_reentrant=False"):
        on_ranks(axes, one_by_one, ranks=1)


class Checkpointed(nn.Module):
    """Two blocks whose activations are computed again in backward; tied, they are one block."""

    def __init__(self, tied, reentrant):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        if tied:
            self.blocks[1] = self.blocks[0]
        self.last, self.reentrant = nn.Linear(8, 4), reentrant

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = self._through(lambda x, block=block: block(x).tanh(), x)
        return self.last(x)

    def _through(self, block, x):
        return block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)


def checkpointed(tied, reentrant):
    return build(lambda: Checkpointed(tied, reentrant).double())


def plain(model, x, y, pace):
    loss_of(model, x, y).backward()


AVERAGED = [{"rule": "grad"}, {"rule": "grad", "schedule": "wfbp"}, {"rule": "atc", "exchange": "neighbor(ring)"}]


@pytest.mark.parametrize("axes", AVERAGED, ids=str)
@pytest.mark.parametrize(("tied", "reentrant"), [(False, False), (False, True), (True, False)])
def test_activation_checkpointing_changes_nothing(axes, tied, reentrant):
    models = {kind: checkpointed(tied, kind) for kind in (None, reentrant)}
    found, expected = (
        on_ranks(axes, plain, lambda kind=kind: copy.deepcopy(models[kind])) for kind in (reentrant, None)
    )
    assert close(found, expected)


def test_reentrant_checkpoints_of_a_tied_layer_are_right_with_local_updates():
    axes = {"rule": "atc", "exchange": "neighbor(ring)"}
    models = {kind: checkpointed(True, kind) for kind in (None, True)}
    found, expected = (on_ranks(axes, plain, lambda kind=kind: copy.deepcopy(models[kind])) for kind in (True, None))
    assert close(found, expected)


@pytest.mark.parametrize("axes", AVERAGED[:2], ids=str)
def test_reentrant_checkpoints_of_a_tied_layer_are_refused_where_gradients_leave_in_backward(axes):
    model = checkpointed(True, True)
    with pytest.raises(WorkloadError, match=r"blocks\.0\..*used twice in the model.*use_reentrant=True"):
        on_ranks(axes, plain, lambda: copy.deepcopy(model), ranks=1)


def penalized(model, x, y, pace):
    """A second-order term: the norm of the gradient with respect to parameters, and a graph of the last backward."""
    loss = loss_of(model, x, y)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + 0.1 * sum(gradient.square().sum() for gradient in gradients)).backward(create_graph=True)


def curved(model, x, y, pace):
    """As AdaHessian does: a backward with a graph, and products with the Hessian from it; here before it leaves."""
    loss = loss_of(model, x, y)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    products = torch.autograd.grad(gradients, parameters, [torch.ones_like(p) for p in parameters], retain_graph=True)
    (loss + sum((p * h.detach()).sum() for p, h in zip(parameters, products, strict=True))).backward(create_graph=True)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("backward", [penalized, curved])
@pytest.mark.parametrize(
    "axes",
    [
        {"rule": "grad"},
        {"rule": "grad", "schedule": "priority"},
        {"rule": "grad", "compress": "feedback(topk(ratio=1.0))"},
        {"rule": "server", "exchange": SERVERS},
        {"rule": "atc"},
        {"rule": "awc", "clip_norm": 1e6},
        {"rule": "gradient_tracking", "exchange": "allreduce"},
        {"rule": "diloco(every=1, lr=1.0, momentum=0.0)"},
    ],
    ids=str,
)
def test_a_backward_that_keeps_a_graph_trains_as_one_process_does(axes, backward):
    def alone():
        model = mlp(torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches(torch.float64, steps=4):
            optimizer.zero_grad()
            backward(model, x, y, None)
            optimizer.step()
        return flat(model)

    settings = {"clip_norm": axes["clip_norm"]} if "clip_norm" in axes else {}
    found = on_ranks(axes, backward, ranks=1, **settings)
    digits = 1e-6 if "compress" in axes else 1e-12  # payloads are float32
    assert torch.allclose(found[0], alone(), rtol=0, atol=digits)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("axes", [{"rule": "grad"}, {"rule": "grad", "compress": "cast"}, {"rule": "awc"}], ids=str)
def test_a_graph_changes_nothing_among_ranks(axes):
    def kept(model, x, y, pace):
        loss_of(model, x, y).backward(create_graph=True)

    assert close(on_ranks(axes, kept), on_ranks(axes, plain))


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("axes", [{"rule": "grad"}, {"rule": "atc"}], ids=str)
def test_a_graph_changes_nothing_while_accumulating(axes):
    def twice(create_graph):
        def backward(model, x, y, pace):
            loss_of(model, x, y).backward(create_graph=create_graph)
            assert not pace.step()
            model(x).square().mean().backward(create_graph=create_graph)

        return backward

    settings = {"accumulate": 2}
    assert close(
        on_ranks({**axes, **settings}, twice(True), **settings),
        on_ranks({**axes, **settings}, twice(False), **settings),
    )

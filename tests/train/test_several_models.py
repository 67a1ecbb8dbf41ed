"""Several wrapped models where there is no mean gradient after backward: gradients wait for step() out of sight."""

import pytest
import torch

from paceline.api import wrap as wrapping
from paceline.errors import WorkloadError
from tests.train.problems import flat, loss_of, mlp
from tests.train.test_contract import OPERATIONS, REFUSING, data, on_ranks, sgd, share_of

NARROW = torch.eye(4, 8, dtype=torch.float64)


def train(wrap, share, look=lambda model: None):
    """Train a generator and a discriminator: two backwards of one, then one through both."""
    d, g = mlp(torch.float64), mlp(torch.float64, seed=1)
    steps = [wrap(d, sgd(d)), wrap(g, sgd(g))]
    for x, y in data(6):
        x, y = share(x, y)
        d.zero_grad()
        loss_of(d, x, y).backward()
        look(d)
        fake = g(x) @ NARROW
        loss_of(d, fake.detach(), y).backward()
        look(d)
        steps[0]()
        g.zero_grad()
        loss_of(d, fake, (y + 1) % 4).backward()
        look(g)
        steps[1]()
    return d, g


def refused(model):
    for use in OPERATIONS.values():
        with pytest.raises(WorkloadError, match=r"(on p.grad|the servers).*try: pace.step\(\)"):
            use(model)


@pytest.mark.parametrize(("axes", "servers"), REFUSING, ids=str)
def test_gradients_are_refused_and_the_weights_are_those_of_one_process(axes, servers):
    exchange = {"exchange": "ps(servers=1, colocated=false)"} if servers else {}

    def work(worker):
        paces = []

        def wrap(model, optimizer):
            paces.append(wrapping.wrap(model, optimizer, **axes, **exchange))
            return paces[-1].step

        models = train(wrap, lambda *batch: share_of(worker, *batch), refused)
        for pace in paces:
            pace.finish()
        return torch.cat([flat(model) for model in models])

    expected = torch.cat([flat(model) for model in train(lambda _, optimizer: optimizer.step, lambda *batch: batch)])
    for weights in on_ranks(work, servers=servers):
        assert (weights - expected).abs().max() < 1e-12


@pytest.mark.parametrize("schedule", ["dear", "priority"])
def test_zero_grad_discards_what_is_out_of_sight(schedule):
    def work(worker):
        models = [mlp(torch.float64), mlp(torch.float64, seed=1)]
        paces = [wrapping.wrap(model, sgd(model), schedule=schedule) for model in models]
        for x, y in data(4):
            loss_of(models[0], *share_of(worker, x, y)).backward()
            models[0].zero_grad()
            for pace in paces:
                pace.step()
        return [flat(model) for model in models]

    for weights in on_ranks(work):
        for seed, found in enumerate(weights):
            assert torch.equal(found, flat(mlp(torch.float64, seed=seed)))


def test_the_mean_can_be_seen_after_synchronize():
    (x, y), *_ = data(1)

    def work(worker):
        models = [mlp(torch.float64), mlp(torch.float64, seed=1)]
        pace, _ = (wrapping.wrap(model, sgd(model), schedule="dear") for model in models)
        loss_of(models[0], *share_of(worker, x, y)).backward()
        pace.synchronize()
        return models[0][0].weight.grad.clone()

    expected = mlp(torch.float64)
    loss_of(expected, x, y).backward()
    for mean in on_ranks(work):
        assert (mean - expected[0].weight.grad).abs().max() < 1e-12

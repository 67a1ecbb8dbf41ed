import torch
from torch import nn

from paceline.train.flops import peak_flops, training_flops


def loss(model, batch):
    return model(batch).square().mean()


def test_a_linear_layer_costs_two_flops_per_weight_forward_and_four_backward():
    model, batch = nn.Linear(10, 20), torch.randn(8, 10)
    assert training_flops(model, loss, batch, samples=8) == 3 * 2 * 10 * 20


def test_counting_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    before, seed = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    assert training_flops(model, loss, torch.randn(8, 4, generator=torch.Generator()), samples=8)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(seed, torch.get_rng_state())


def test_a_network_that_cannot_be_counted_has_no_figure():
    def broken(model, batch):
        raise RuntimeError("only in training")

    model = nn.Linear(2, 2)
    assert training_flops(model, broken, None, samples=1) is None
    assert model.training


def test_the_peak_is_a_speed():
    assert 1e8 < peak_flops(0.01) < 1e15

"""Parameters and flops of models."""

import torch
from torch import nn

from paceline.types import Workload
from paceline.workload.describe import describe
from paceline.workload.resolve import build


def test_flops_are_two_per_multiply_add():
    found = describe(build("mlp(classes=10, image_size=4, hidden=8, layers=1)"), "mine")
    assert found.flops_per_sample == 2 * (48 * 8 + 8 * 10)
    assert (found.name, found.unit, found.tensors) == ("mine", "img", 4)
    assert found.parameters == 48 * 8 + 8 + 8 * 10 + 10


def test_describing_changes_neither_the_model_nor_the_random_state():
    workload = build("mobilenet_v2(classes=10, image_size=32)")
    before = {key: value.clone() for key, value in workload.model.state_dict().items()}
    state = torch.get_rng_state()
    describe(workload, "mobilenet_v2")
    assert all(torch.equal(before[key], value) for key, value in workload.model.state_dict().items())
    assert all(tensor.device.type == "cpu" for tensor in workload.model.parameters())
    assert workload.model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_that_looks_at_values_is_computed_for_real():
    class Picky(nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum().item() > 0 else x

    workload = Workload(Picky(4, 3), lambda model, x: model(x).mean(), lambda ids: torch.ones(len(ids), 4))
    assert describe(workload, "picky").flops_per_sample == 2 * 4 * 3


def test_shared_and_frozen_tensors_are_not_counted_twice_or_at_all():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    workload = Workload(model, lambda model, x: model(x).mean(), lambda ids: torch.ones(len(ids), 4))
    found = describe(workload, "shared")
    assert (found.parameters, found.tensors, found.bytes) == (16, 1, 64)

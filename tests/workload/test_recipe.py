import pytest
import torch

from paceline.errors import BadMember
from paceline.workload.recipe import make_optimizer


def parameters():
    return [torch.nn.Parameter(torch.zeros(2, 2))]


@pytest.mark.parametrize("text", ["sgd(lr=-1)", "sgd(lr=abc)", "adam(betas=1)", "sgd(lr=0.1, speed=2)"])
def test_a_wrong_setting_is_told_as_one(text):
    with pytest.raises(BadMember):
        make_optimizer(text, parameters())


def test_an_error_inside_is_not_blamed_on_the_settings():
    def broken():
        yield from parameters()
        raise TypeError("something else is broken")

    with pytest.raises(TypeError, match="something else is broken"):
        make_optimizer("sgd(lr=0.1)", broken())


def test_parameters_that_an_optimizer_does_not_take_are_named():
    with pytest.raises(BadMember, match="empty parameter list"):
        make_optimizer("sgd(lr=0.1)", [])

"""Samples made from ids."""

import pytest
import torch

from paceline.errors import BadMember
from paceline.types import Workload
from paceline.workload.order import Permuted
from paceline.workload.sources import MENU

COUNTING = Workload(None, None, lambda ids: ids.clone())


def test_samples_are_made_from_their_ids_in_the_order_of_the_seed():
    source = MENU.make("fake(cpu, samples=20)")
    samples = source.samples_of(COUNTING)
    assert len(samples) == 20
    assert torch.equal(samples(torch.tensor([3, 1])), torch.tensor([3, 1]))
    assert source.order(8, 4) == Permuted(20, 8, 4)


def test_on_the_device_one_batch_is_kept():
    assert MENU.make("fake").constant
    assert not MENU.make("fake(cpu)").constant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fake(disk)", "location takes device or cpu; got disk"),
        ("fake(samples=0)", "at least one sample"),
        ("fake(samples=many)", "samples takes a whole number; got many"),
        ("fake(speed=3)", "fake takes location, samples; got speed"),
    ],
)
def test_wrong_settings_are_named(text, why):
    with pytest.raises(BadMember, match=why):
        MENU.make(text)

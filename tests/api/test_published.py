"""Every expectation of published.py, on ranks that are threads; and that a wrong value would be noticed."""

import pytest
import torch

import paceline
from tests.api import published
from tests.api.published_windows import CHECKS
from tests.api.test_collectives import on_ranks


def names_by_check():
    """Each check once, with the first of its published names."""
    return {check: name for name, check in reversed(CHECKS.items())}


@pytest.mark.parametrize("check", names_by_check(), ids=names_by_check().get)
def test_an_operation_has_its_published_value(check):
    on_ranks(published.SIZE, check, published.NODES)


def test_a_wrong_value_is_noticed():
    with pytest.raises(AssertionError):
        on_ranks(2, lambda rank: published.holds(paceline.allreduce(torch.ones(3)), 1.01, (3,)))

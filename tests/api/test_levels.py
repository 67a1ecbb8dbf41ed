"""Repeated hierarchical calls allocate memory once, and do not overwrite a call in progress."""

import pytest
import torch

import paceline as calls
from paceline.api.join import current
from paceline.errors import WrongCommand
from tests.api.test_collectives import on_ranks

NODES = (0, 0, 1, 1)


def test_repeated_calls_take_no_more_memory():
    def work(rank):
        x = torch.arange(1001.0) * rank
        calls.hierarchical_neighbor_allreduce(x)
        space = current().comm._space
        taken = len(space._registered)
        means = [calls.hierarchical_neighbor_allreduce(x * k)[1].item() for k in range(5)]
        return len(space._registered) - taken, means

    assert on_ranks(4, work, NODES) == [(0, [0.0, 1.5, 3.0, 4.5, 6.0])] * 4


def test_calls_under_way_do_not_write_over_each_other():
    def work(rank):
        x = torch.full((33,), float(rank))
        handles = [calls.hierarchical_neighbor_allreduce(x + k, step=k, wait=False) for k in range(3)]
        return [handle.wait().unique().tolist() for handle in handles]

    assert on_ranks(4, work, NODES) == [[[1.5], [2.5], [3.5]]] * 4


def test_weights_with_a_wrong_mean_are_refused_between_nodes_too():
    def work(rank):
        with pytest.raises(WrongCommand, match="wrong mean"):
            calls.hierarchical_neighbor_allreduce(torch.zeros(2), topology="star(uniform=true)")
        return calls.hierarchical_neighbor_allreduce(torch.tensor([float(rank)]), topology="star").item()

    assert sum(on_ranks(3, work, (0, 1, 2))) == pytest.approx(3.0)

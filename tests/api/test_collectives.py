"""Collectives as library calls, on real ranks that are threads."""

import pytest
import torch

import paceline as calls
from paceline.api import join as joining
from paceline.comm.thread import run_ranks
from paceline.engine.device import CpuDevice
from paceline.errors import CallMismatch, WrongCommand


def on_ranks(size, work, nodes=None):
    def body(comm):
        if nodes:
            comm.placement = nodes
        joining._current.set(joining.Worker(comm, CpuDevice()))
        return work(comm.rank)

    return run_ranks(size, body)


def x_of(rank):
    return torch.tensor([float(rank), 10.0 * rank])


def test_allreduce_gives_mean_or_sum_and_leaves_its_input_alone():
    def work(rank):
        x = x_of(rank)
        mean, total = calls.allreduce(x), calls.allreduce(torch.tensor([rank]), average=False)
        assert torch.equal(x, x_of(rank))
        return mean.tolist(), total.tolist()

    assert on_ranks(4, work) == [([1.5, 15.0], [6])] * 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: calls.allreduce(x_of(r), average=r == 0), "allreduce, average=False"),
        (lambda r: calls.allreduce(torch.ones((2, 3) if r else (3, 2))), r"allreduce \[3, 2\]"),
        (lambda r: calls.broadcast(torch.ones((2, 3) if r else (3, 2))), r"broadcast \[3, 2\]"),
        (lambda r: calls.neighbor_allreduce(torch.ones((2, 3) if r else (3, 2))), r"neighbor_allreduce.* \[3, 2\]"),
        (lambda r: calls.pair_gossip(torch.ones((2, 3) if r else (3, 2)), 1 - r), r"pair_gossip \[3, 2\]"),
        (
            lambda r: calls.hierarchical_neighbor_allreduce(torch.ones((2, 3) if r else (3, 2))),
            r"hierarchical_neighbor_allreduce.* \[3, 2\]",
        ),
    ],
    ids=["mean and sum", "a sum", "a broadcast", "neighbors", "a pair", "nodes"],
)
def test_calls_that_differ_in_more_than_length_give_no_result(call, words):
    with pytest.raises(CallMismatch, match=words):
        on_ranks(2, call)


def test_whole_numbers_have_no_mean():
    with pytest.raises(WrongCommand, match="average=False"):
        on_ranks(1, lambda rank: calls.allreduce(torch.tensor([1])))


def test_broadcast_and_allgather():
    assert on_ranks(3, lambda r: calls.broadcast(x_of(r), root=2).tolist()) == [[2.0, 20.0]] * 3
    rows = [[0.0, 0.0], [1.0, 10.0], [2.0, 20.0]]
    assert on_ranks(3, lambda r: calls.allgather(x_of(r)[None]).tolist()) == [rows] * 3


def test_a_call_that_does_not_wait_gives_a_handle():
    def work(rank):
        handles = [calls.allreduce(x_of(rank) * k, wait=False) for k in range(3)]
        return [handle.wait()[0].item() for handle in handles] + [all(handle.done() for handle in handles)]

    assert on_ranks(2, work) == [[0.0, 0.5, 1.0, True]] * 2


def test_neighbors_of_a_topology():
    found = on_ranks(4, lambda r: calls.neighbor_allreduce(x_of(r).double(), topology="exp2")[0].item())
    assert found == pytest.approx([5 / 3, 4 / 3, 1, 2])


def test_weights_of_both_sides_multiply_and_edges_need_no_graph():
    def work(rank):
        if rank == 0:  # hears from 2 with weight 0.5, and tells nobody
            y = calls.neighbor_allreduce(x_of(rank), self_weight=0.25, src_weights={2: 0.5}, dst_weights={})
        elif rank == 2:  # tells 0, times 3
            y = calls.neighbor_allreduce(x_of(rank), self_weight=1.0, src_weights={}, dst_weights={0: 3.0})
        else:
            y = calls.neighbor_allreduce(x_of(rank), self_weight=1.0, src_weights={}, dst_weights={})
        return y[0].item()

    assert on_ranks(3, work) == [0.25 * 0 + 0.5 * 3.0 * 2, 1.0, 2.0]


def test_without_a_weight_of_its_own_a_rank_keeps_the_rest_to_one():
    def work(rank):
        other = 1 - rank
        return calls.neighbor_allreduce(x_of(rank), src_weights={other: 0.25}, dst_weights={other: 1.0})[1].item()

    assert on_ranks(2, work) == [0.25 * 10, 0.75 * 10]


def test_who_is_not_told_takes_whoever_comes():
    found = on_ranks(3, lambda r: calls.neighbor_allreduce(x_of(r), self_weight=0.0, dst_weights={(r + 1) % 3: 1.0}))
    assert [y[0].item() for y in found] == [2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("src", "dst", "complaint"),
    [
        ({0: {1: 0.5}}, {}, "rank 0 listens to rank 1, which does not send to it"),
        ({}, {0: {1: 1.0}}, "rank 0 sends to rank 1, which does not listen"),
        ({0: {7: 1.0}}, {}, "rank 0 names rank 7, which is not another rank"),
        ({1: {1: 1.0}}, {}, "rank 1 names rank 1, which is not another rank"),
    ],
)
def test_a_mismatch_raises_on_all_ranks(src, dst, complaint):
    def work(rank):
        with pytest.raises(WrongCommand) as caught:
            calls.neighbor_allreduce(x_of(rank), src_weights=src.get(rank, {}), dst_weights=dst.get(rank, {}))
        return complaint in str(caught.value)

    assert on_ranks(3, work) == [True] * 3


def test_whole_numbers_cannot_be_weighted():
    with pytest.raises(WrongCommand, match="fractions"):
        on_ranks(1, lambda rank: calls.neighbor_allreduce(torch.tensor([1]), topology="ring"))


def test_uniform_weights_on_a_star_are_refused():
    with pytest.raises(WrongCommand, match="wrong mean"):
        on_ranks(3, lambda r: calls.neighbor_allreduce(x_of(r), topology="star(uniform=true)"))


def test_ranks_of_a_node_end_with_the_same_bits():
    found = on_ranks(4, lambda r: calls.hierarchical_neighbor_allreduce(x_of(r)).tolist(), nodes=(0, 0, 1, 1))
    assert found[0] == found[1] == found[2] == found[3] == [1.5, 15.0]  # two nodes, one peer: the exact mean
    found = on_ranks(6, lambda r: calls.hierarchical_neighbor_allreduce(x_of(r))[0].item(), nodes=(0, 0, 1, 1, 2, 2))
    assert found == [2.5, 2.5, 1.5, 1.5, 3.5, 3.5]


def test_nodes_mix_by_the_topology_and_the_step_that_are_given():
    def between(**choices):
        one = lambda rank: calls.hierarchical_neighbor_allreduce(x_of(rank), **choices)[0].item()  # noqa: E731
        return on_ranks(4, one, nodes=(0, 1, 2, 3))

    assert between(step=1) == [1.0, 2.0, 1.0, 2.0]  # with the one that is two away
    assert between(topology="ring") == pytest.approx([4 / 3, 1, 2, 5 / 3])


def test_a_rank_that_hears_nobody_keeps_its_own():
    assert on_ranks(1, lambda r: calls.neighbor_allreduce(torch.tensor([5.0]), topology="ring").tolist()) == [[5.0]]


def test_calls_before_join_are_told():
    joining._current.set(None)
    with pytest.raises(WrongCommand, match="join"):
        calls.allreduce(torch.zeros(1))


def test_a_tensor_with_a_history_is_taken_without_it():
    def work(rank):
        loss = torch.ones(2, requires_grad=True) * (rank + 1)
        found = [
            calls.allreduce(loss),
            calls.allreduce(loss, average=False),
            calls.broadcast(loss),
            calls.allgather(loss),
            calls.neighbor_allreduce(loss, topology="ring"),
            calls.neighbor_allreduce(loss, self_weight=0.5, src_weights={1 - rank: 0.5}, dst_weights={1 - rank: 1.0}),
            calls.hierarchical_neighbor_allreduce(loss),
        ]
        return [y.requires_grad for y in found], found[0].tolist(), found[1].tolist()

    assert on_ranks(2, work) == [([False] * 7, [1.5, 1.5], [3.0, 3.0])] * 2

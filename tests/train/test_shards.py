"""Sums over virtual shards: the same bits for any number of members in deterministic mode."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.elastic.tasks import ranges_of, shares_of
from paceline.train.shards import ShardExchange, ShardSum
from tests.comm.tcp.ranks import run_tcp_ranks

SHARDS, NUMEL = 8, 150_000


def vectors():
    dice = torch.Generator().manual_seed(3)
    return [torch.randn(NUMEL, generator=dice) * 10.0**k for k in range(-4, 4)]


def total(members, deterministic, run=run_ranks, lengths=()):
    def work(comm):
        shares = ranges_of(lengths) if lengths else shares_of(SHARDS, comm.size)
        exchange = ShardExchange(comm, NUMEL, torch.float32, shares, deterministic=deterministic)
        mine = shares[comm.rank]
        for _ in range(2):  # memory is used again in the next step
            own = ShardSum(mine, deterministic=deterministic)
            for shard in mine:
                own.add(vectors()[shard])
            exchange.sum(own.rows, "a step")
        result = exchange.total()
        comm.barrier()
        exchange.close()
        return result

    results = run(members, work)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


@pytest.mark.parametrize("members", range(2, 9))
def test_bits_do_not_depend_on_the_members(members):
    assert torch.equal(total(members, True), total(1, True))


@pytest.mark.parametrize("lengths", [(1, 7), (7, 1), (3, 2, 2, 1), (1, 6, 1), (1, 1, 1, 5)])
def test_bits_do_not_depend_on_the_deal_of_tasks(lengths):
    assert torch.equal(total(len(lengths), True, lengths=lengths), total(1, True))
    assert not torch.equal(total(2, False, lengths=(3, 5)), total(2, False, lengths=(6, 2)))  # the control


@pytest.mark.parametrize("members", [2, 3, 5])
def test_bits_depend_neither_on_the_members_nor_on_the_comm(members):
    assert torch.equal(total(members, True, run_tcp_ranks), total(1, True))


def test_a_ring_adds_the_same_numbers_in_another_order():
    torch.testing.assert_close(total(3, False, run_tcp_ranks), total(1, False), rtol=1e-4, atol=1e-2)


def test_bits_depend_on_the_members_in_fast_mode():
    """The control: added in rank order, sums of other groups differ in their last bits."""
    assert not all(torch.equal(total(members, False), total(1, False)) for members in (3, 5, 7))
    torch.testing.assert_close(total(3, False), torch.stack(vectors()).double().sum(0).float(), rtol=1e-4, atol=1e-2)

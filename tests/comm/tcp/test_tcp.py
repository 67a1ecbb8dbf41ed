"""Collectives over sockets: calls that differ, ranks that die or freeze, aborts, groups and streams."""

import threading
import time

import pytest
import torch

from paceline.comm.tcp import program as plans
from paceline.comm.tcp.settings import TcpSettings
from paceline.errors import BadMember, CallMismatch, PeerLost
from paceline.types import Mixing
from tests.comm.tcp.ranks import run_tcp_ranks
from tests.laws.comm_laws import LAWS, total, value


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_tcp_keeps_the_laws(size):
    def all_laws(comm):
        for law in LAWS:
            law(comm)
            comm.barrier()

    run_tcp_ranks(size, all_laws)


def test_several_streams_carry_one_sum():
    def work(comm):
        out = torch.zeros(2_000_000)
        comm.all_sum(value(comm.rank, 2_000_000), out).wait()
        assert torch.equal(out, total(comm.size, 2_000_000))
        lines = comm.mesh.lines[(comm.rank + 1) % comm.size]
        return len(lines)

    assert run_tcp_ranks(3, work, settings=TcpSettings(streams=3)) == [3] * 3


def test_messages_that_wait_for_their_call_stay_in_the_kernel():
    """Rank 1 sends 20 MB before rank 0 has called: rank 0 reads a header and no more."""

    def work(comm):
        src, out, board = value(comm.rank, 5_000_000), torch.zeros(5_000_000), comm.board(4)
        if comm.rank == 0:
            time.sleep(0.2)
            assert sum(comm.received()) == 0
            board.say(1)
        comm.all_sum(src, out, "late").wait()
        assert torch.equal(out, total(2, 5_000_000))
        assert comm.rank == 0 or board.hear() == 1

    run_tcp_ranks(2, work)


def test_different_calls_are_told_to_both_ranks():
    told = {}

    def work(comm):
        numel = 4 + comm.rank
        with pytest.raises(CallMismatch) as caught:
            comm.all_sum(torch.ones(numel), torch.zeros(numel), "a sum").wait(20)
        told[comm.rank] = str(caught.value)

    run_tcp_ranks(2, work)
    for text in told.values():
        assert "all_sum of 4 float32, a sum" in text
        assert "all_sum of 5 float32, a sum" in text


def test_a_rank_that_makes_more_calls_is_told_so():
    def work(comm):
        comm.barrier()
        if comm.rank == 0:
            with pytest.raises(CallMismatch, match=r"rank 0 .* made more calls than rank 1"):
                comm.all_sum(torch.ones(4), torch.zeros(4), "one more").wait(20)

    run_tcp_ranks(2, work)


def test_a_failed_rank_is_named_by_the_others():
    told = {}

    def work(comm):
        comm.barrier()
        if comm.rank == 1:
            raise RuntimeError("boom")
        with pytest.raises(PeerLost) as caught:
            comm.all_sum(torch.ones(4), torch.empty(4), "chunk 7 at step 812").wait(20)
        told[comm.rank] = caught.value

    with pytest.raises(RuntimeError, match="boom"):
        run_tcp_ranks(3, work)
    for problem in told.values():
        assert problem.rank == 1
        assert "failed during all_sum of chunk 7 at step 812" in str(problem)


def test_a_rank_whose_sockets_end_is_lost_for_all():
    """As if the process were killed: no goodbye."""
    told = {}

    def work(comm):
        comm.barrier()
        if comm.rank == 2:
            comm.mesh.close(reset=True)
            raise RuntimeError("killed")
        with pytest.raises(PeerLost, match=r"rank 2 .* was lost") as caught:
            comm.all_sum(torch.ones(100_000), torch.empty(100_000), "a sum").wait(20)
        told[comm.rank] = caught.value.rank

    with pytest.raises(RuntimeError, match="killed"):
        run_tcp_ranks(4, work)
    assert told == dict.fromkeys((0, 1, 3), 2)


def test_an_abort_ends_a_wait_for_a_frozen_rank_on_all_ranks():
    frozen, seen = threading.Event(), {}

    def work(comm):
        comm.barrier()
        if comm.rank == 2:
            frozen.wait(20)  # it neither calls nor leaves
            with pytest.raises(PeerLost):
                comm.barrier(5)
            return
        if comm.rank == 0:
            threading.Timer(0.1, comm.abort, ("rank 2 is frozen",)).start()
        began = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            comm.all_sum(torch.ones(1_000_000), torch.empty(1_000_000), "a sum").wait(50)
        seen[comm.rank] = str(caught.value), time.monotonic() - began
        if len(seen) == 2:
            frozen.set()

    run_tcp_ranks(3, work)
    assert "this generation was given up: rank 2 is frozen" in seen[0][0]
    assert "gave up this generation" in seen[1][0] or "was lost" in seen[1][0]
    assert all(seconds < 20 for _, seconds in seen.values())


def test_without_an_abort_only_the_deadline_ends_the_wait():
    """The control of the test above."""

    def work(comm):
        if comm.rank == 0:
            with pytest.raises(PeerLost, match=r"rank 1 .* stopped answering in all_sum of a sum after 0.5 s"):
                comm.all_sum(torch.ones(4), torch.empty(4), "a sum").wait(0.5)
            comm.abort("enough")
        else:
            comm.mesh.wait_until(lambda: comm.mesh.problem is not None, 20)

    run_tcp_ranks(2, work)


def test_a_generation_follows_another_at_once():
    for generation in range(3):

        def work(comm):
            if comm.rank == 0:
                comm.abort("next")
            assert comm.mesh.wait_until(lambda: comm.mesh.problem is not None, 20)

        run_tcp_ranks(3, work, generation=generation)


def test_groups_have_orders_of_their_own():
    """Rank 0 calls the group first, rank 1 the whole: over one connection each would wait for the other."""

    def work(comm):
        pair = comm.split([[0, 1], [2, 3]])
        whole, part = torch.zeros(3), torch.zeros(200_000)
        calls = [
            lambda: comm.all_sum(torch.ones(3), whole, "all"),
            lambda: pair.all_sum(torch.ones(200_000), part, "a pair"),
        ]
        for pending in [call() for call in (calls if comm.rank % 2 else reversed(calls))]:
            pending.wait(20)
        assert (whole[0], part[0], pair.size) == (4, 2, 2)
        return sum(comm.received()) > 0

    assert run_tcp_ranks(4, work) == [True] * 4


def test_neighbors_wait_for_each_other_only():
    def work(comm):
        out, n = torch.zeros(300_000), comm.size
        mixing = Mixing(0.5, (((comm.rank - 1) % n, 0.5),), ((comm.rank + 1) % n,))
        comm.mix(value(comm.rank, 300_000), out, mixing, "a ring").wait()
        expected = 0.5 * value(comm.rank, 300_000) + 0.5 * value((comm.rank - 1) % n, 300_000)
        assert torch.equal(out, expected)
        return [nbytes for nbytes in comm.received() if nbytes]

    assert run_tcp_ranks(4, work) == [[1_200_000]] * 4


@pytest.mark.parametrize("size", [3, 8], ids=["direct", "doubling"])
def test_a_small_sum_in_place_sends_its_own_values_behind_a_large_message(size):
    """Rank 0 has both other vectors and adds them while its line to rank 1 is still full of the message before."""

    def work(comm):
        large = torch.zeros(10_000_000 if comm.rank < 2 else 1)
        sources, targets = (((0, 1.0),), ()) if comm.rank == 1 else ((), (1,) if comm.rank == 0 else ())
        before = comm.mix(large, torch.zeros_like(large), Mixing(0.0, sources, targets), "a large message")
        x = value(comm.rank, 1000)
        comm.all_sum(x, x, "in place").wait()
        before.wait()
        return torch.equal(x, total(size, 1000))

    assert run_tcp_ranks(size, work) == [True] * size


def test_neighbors_may_mix_in_place():
    """Each rank writes its result while it still sends: 40 MB do not fit into the buffers of the kernel."""

    def work(comm):
        x, there = value(comm.rank, 10_000_000), 1 - comm.rank
        keep, weight = (0.0, 1.0) if comm.rank else (0.5, 0.5)
        if comm.rank == 0:
            time.sleep(0.1)
        comm.mix(x, x, Mixing(keep, ((there, weight),), (there,)), "in place").wait()
        expected = keep * value(comm.rank, 10_000_000) + weight * value(there, 10_000_000)
        return torch.equal(x, expected)

    assert run_tcp_ranks(2, work) == [True] * 2


def test_small_sums_take_one_round_and_large_ones_a_ring():
    small = plans.program(plans.sum_steps, 0, 4, 256, 4)
    assert sorted(small.outgoing) == [1, 2, 3]
    large = plans.program(plans.sum_steps, 0, 4, 1 << 20, 4)
    assert (list(large.outgoing), list(large.incoming)) == ([1], [3])
    longest = max(message.stop - message.start for message in large.outgoing[1])
    assert longest * 4 <= plans.SEGMENT


def test_a_wrong_number_of_streams_is_refused():
    with pytest.raises(BadMember, match="1 to 64"):
        TcpSettings(streams=0)

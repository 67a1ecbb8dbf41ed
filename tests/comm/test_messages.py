"""Messages between ranks: NCCL gets those of one call as one batch, gloo one by one, receives first.

A reduce-scatter is one collective over both.

A fake network stands for both, with ranks that are threads; nothing here has run on a GPU.
"""

import queue
import threading
from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
import torch

from paceline.comm.process import Home
from paceline.comm.torch import gloo as torchdist
from paceline.comm.torch import nccl
from paceline.comm.torch.gloo import GlooComm
from paceline.comm.torch.nccl import NcclComm
from paceline.types import Mixing, Piece


class Done:
    """A work that runs its action in wait()."""

    def __init__(self, *receives):
        self._receives = receives

    def wait(self, *limit):
        for receive in self._receives:
            receive()


class Network:
    """A fake of torch.distributed that records the calls of every rank."""

    def __init__(self):
        self.log, self._me = defaultdict(list), threading.local()
        self._ways, self._lock = defaultdict(queue.Queue), threading.Lock()

    def enter(self, rank):
        self._me.rank = rank

    def irecv(self, part, peer, group, tag=0):
        self.log[self._me.rank].append(("irecv", peer, tag))
        return Done(self._receive(part, peer, tag))

    def isend(self, part, peer, group, tag=0):
        self.log[self._me.rank].append(("isend", peer, tag))
        self._send(part, peer, tag)
        return Done()

    def P2POp(self, op, part, peer, group):
        return SimpleNamespace(verb=op.__name__, part=part, peer=peer)

    def batch_isend_irecv(self, ops):
        self.log[self._me.rank].append(("batch", *((op.verb, op.peer) for op in ops)))
        for op in ops:
            if op.verb == "isend":
                self._send(op.part, op.peer)
        return [Done(*(self._receive(op.part, op.peer) for op in ops if op.verb == "irecv"))]

    def all_to_all_single(self, out, given, out_sizes, given_sizes, group, async_op):
        self.log[self._me.rank].append(("all_to_all", out_sizes, given_sizes))
        for peer, part in enumerate(given.split(given_sizes)):
            self._send(part, peer, "all")
        return Done(*(self._receive(part, peer, "all") for peer, part in enumerate(out.split(out_sizes))))

    def _send(self, part, peer, tag=0):
        self._way(self._me.rank, peer, tag).put(part.clone())

    def _way(self, *ends):
        with self._lock:  # both ends may be the first to look
            return self._ways[ends]

    def _receive(self, part, peer, tag=0):
        way = self._way(peer, self._me.rank, tag)
        return lambda: part.copy_(way.get(timeout=10))


def on_ranks(monkeypatch, kind, size, work):
    """Run work(comm) on every rank; return the results and the recorded calls."""
    network, given = Network(), [None] * size
    for module in (torchdist, nccl):
        monkeypatch.setattr(module, "dist", network)

    def body(rank):
        network.enter(rank)
        comm = kind.__new__(kind)
        comm.rank, comm.size, comm.deadline, comm.members = rank, size, 10.0, tuple(range(size))
        comm._home, comm._pending = Home(rank), deque()
        comm._agreement = comm._file = None
        comm._group, comm._tags, comm._received = None, 0, [0] * size
        given[rank] = work(comm)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return given, [network.log[rank] for rank in range(size)]


def values(rank):
    return torch.arange(6.0) + 10 * rank


def scatter(comm):
    mine = torch.zeros(3)
    comm.reduce_scatter(values(comm.rank), mine).wait()
    return mine.tolist()


def scatter_one(comm):
    mine = torch.zeros(comm.rank)
    comm.reduce_scatter(torch.ones(1), mine).wait()
    return mine.tolist()


def swap(comm):
    out, peer = torch.zeros(6), 1 - comm.rank
    comm.mix(values(comm.rank), out, Mixing(0.5, ((peer, 0.5),), (peer,))).wait()
    return out.tolist()


SWAPPED = [[5, 6, 7, 8, 9, 10]] * 2


def test_nccl_gets_the_messages_of_one_call_as_one_batch(monkeypatch):
    given, called = on_ranks(monkeypatch, NcclComm, 2, swap)
    assert given == SWAPPED
    assert called == [[("batch", ("irecv", 1 - rank), ("isend", 1 - rank))] for rank in range(2)]


def test_gloo_gets_them_one_by_one_receives_first(monkeypatch):
    given, called = on_ranks(monkeypatch, GlooComm, 2, swap)
    assert given == SWAPPED
    tag = called[0][0][2]
    assert called == [[("irecv", 1 - rank, tag), ("isend", 1 - rank, tag)] for rank in range(2)]


def test_over_nccl_empty_messages_are_left_out(monkeypatch):
    def work(comm):
        peer = 1 - comm.rank
        comm.mix(torch.zeros(0), torch.zeros(0), Mixing(0.5, ((peer, 0.5),), (peer,))).wait()

    assert on_ranks(monkeypatch, NcclComm, 2, work)[1] == [[], []]


@pytest.mark.parametrize("kind", [NcclComm, GlooComm])
def test_a_reduce_scatter_is_one_collective(monkeypatch, kind):
    """Unlike messages of gloo, a collective reports its completion; sizes are bytes, of four for each element."""
    given, called = on_ranks(monkeypatch, kind, 2, scatter)
    assert given == [[10, 12, 14], [16, 18, 20]]
    assert called == [[("all_to_all", [12, 12], [12, 12])]] * 2
    given, called = on_ranks(monkeypatch, kind, 2, scatter_one)
    assert given == [[], [2.0]]
    assert called == [[("all_to_all", [0, 0], [0, 4])], [("all_to_all", [4, 4], [0, 4])]]


PIECES = {
    "a worker each": (2, 2, [Piece(0, 0, 2), Piece(1, 2, 6)]),
    "several of one owner": (2, 2, [Piece(1, 0, 1), Piece(0, 1, 3), Piece(1, 3, 6)]),
    "a server as well": (2, 3, [Piece(2, 0, 2), Piece(0, 2, 4), Piece(2, 4, 6)]),
}


@pytest.mark.parametrize("kind", [NcclComm, GlooComm])
@pytest.mark.parametrize("case", PIECES)
def test_sums_by_owners_are_the_same_over_both(monkeypatch, kind, case):
    givers, size, pieces = PIECES[case]

    def work(comm):
        out = torch.zeros(6)
        comm.sum_by(values(comm.rank), out, pieces, givers).wait()
        return out.tolist(), comm._received

    given, called = on_ranks(monkeypatch, kind, size, work)
    assert [out for out, _ in given[:givers]] == [[10, 12, 14, 16, 18, 20]] * givers
    owned = [4 * sum(stop - start for owner, start, stop in pieces if owner == rank) for rank in range(size)]
    for rank, (_, received) in enumerate(given):
        pulled = [0 if peer == rank or rank >= givers else owned[peer] for peer in range(size)]
        pushed = [0 if peer == rank or peer >= givers else owned[rank] for peer in range(size)]
        assert received == [a + b for a, b in zip(pulled, pushed, strict=True)]
    if kind is NcclComm:
        assert all([verb for verb, *_ in calls] == ["batch", "batch"] for calls in called)

"""Ranks that disagree about the sequence of collectives get an error that names both calls, and never a result."""

import threading

import pytest
import torch

from paceline.comm.agreement import CallFile
from paceline.comm.notes import LENGTH, call_text
from paceline.comm.rendezvous import MemoryStore
from paceline.comm.shm.shm import ShmComm
from paceline.comm.thread import ThreadComm, ThreadGroup
from paceline.errors import CallMismatch, PeerLost
from paceline.types import Mixing

DEADLINE = 20.0


def maker(kind, size):
    if kind == "thread":
        group = ThreadGroup(size)
        return lambda rank: ThreadComm(rank, group, DEADLINE)
    store = MemoryStore()
    return lambda rank: ShmComm(rank, size, store, DEADLINE)


def outcomes(kind, *works):
    """Return what each rank returned or raised; ranks that raise close as failed."""
    make, ends = maker(kind, len(works)), [None] * len(works)

    def body(rank):
        comm = make(rank)
        try:
            ends[rank] = works[rank](comm)
            comm.close()
        except Exception as problem:
            ends[rank] = problem
            comm.close("failed")

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ends


def summing(numel=4, dtype=torch.float32, key="the loss", times=1):
    def work(comm):
        for _ in range(times):
            out = torch.zeros(numel, dtype=dtype)
            comm.all_sum(torch.ones(numel, dtype=dtype), out, key).wait()
        return out

    return work


def gathering(numel=4):
    def work(comm):
        out = torch.zeros(comm.size, numel)
        comm.all_gather(torch.ones(numel), out, "the table").wait()
        return out

    return work


def sending(root):
    def work(comm):
        comm.broadcast(torch.ones(4), root, "weights").wait()
        comm.barrier()

    return work


def in_place(numel):
    """A sum of registered memory, as the engine does it."""

    def work(comm):
        source, result = comm.allocate(64, torch.float32), comm.allocate_result(64, torch.float32)
        comm.all_sum(source[:numel], result[:numel], "chunk 0").wait()
        return result

    return work


PAIRS = {
    "verb": (summing(), gathering(), "all_sum of 4 float32, the loss", "all_gather of 4 float32, the table"),
    "length": (summing(4), summing(6), "all_sum of 4 float32", "all_sum of 6 float32"),
    "dtype": (summing(), summing(dtype=torch.float64), "4 float32", "4 float64"),
    "bytes": (summing(8), summing(4, torch.float64), "8 float32", "4 float64"),
    "key": (summing(), summing(key="the norm"), "the loss", "the norm"),
    "root": (sending(0), sending(1), "weights, from rank 0", "weights, from rank 1"),
    "in place": (in_place(8), in_place(16), "all_sum of 8 float32, chunk 0", "all_sum of 16 float32, chunk 0"),
    "long": (summing(1 << 19), summing(1 << 20), "all_sum of 524288 float32", "all_sum of 1048576 float32"),
}


@pytest.mark.parametrize("kind", ["shm", "thread"])
@pytest.mark.parametrize("case", PAIRS)
def test_different_calls_raise_on_all_ranks_and_both_are_named(kind, case):
    first, second, *texts = PAIRS[case]
    ends = outcomes(kind, first, second)
    assert all(isinstance(end, (CallMismatch, PeerLost)) for end in ends), ends
    messages = [str(end) for end in ends if isinstance(end, CallMismatch)]
    assert messages, ends
    for message in messages:
        assert "rank 0" in message
        assert "rank 1" in message
        assert all(text in message for text in texts)
        assert "try: make every call on all ranks" in message


@pytest.mark.parametrize("kind", ["shm", "thread"])
def test_one_call_more_on_one_rank_raises_on_all_and_names_both_counts(kind):
    ends = outcomes(kind, summing(times=5), summing(times=4))
    for end in ends:
        assert isinstance(end, CallMismatch), ends
        assert "rank 0" in str(end)
        assert "made more calls than rank 1" in str(end)
        assert "all_sum of 4 float32, the loss" in str(end)
    made = [int(str(end).split("ended after ")[1].split()[0]) for end in ends]
    assert made[0] == made[1]
    assert f"operation {made[0] + 1} of rank 0" in str(ends[0])


@pytest.mark.parametrize("kind", ["shm", "thread"])
def test_an_extra_call_under_if_first_raises_before_a_wrong_sum(kind):
    def training(comm):
        sums = []
        for step in range(4):
            total = torch.zeros(1)
            comm.all_sum(torch.full((1,), float(step)), total, f"step {step}").wait()
            sums.append(total.item())
            if comm.rank == 0:
                comm.all_sum(torch.ones(1), torch.zeros(1), "for the log").wait()
        return sums

    ends = outcomes(kind, training, training)
    assert [type(end) for end in ends] == [CallMismatch] * 2
    assert "all_sum of 1 float32, for the log on rank 0" in str(ends[0])
    assert "all_sum of 1 float32, step 1 on rank 1" in str(ends[0])


@pytest.mark.parametrize("kind", ["shm", "thread"])
def test_three_ranks_of_which_one_is_wrong_all_raise(kind):
    ends = outcomes(kind, summing(), summing(), summing(5))
    assert all(isinstance(end, (CallMismatch, PeerLost)) for end in ends), ends


@pytest.mark.parametrize("kind", ["shm", "thread"])
def test_neighbors_that_mix_different_lengths_raise(kind):
    def mixing(numel):
        def work(comm):
            peer = 1 - comm.rank
            row = Mixing(0.5, ((peer, 0.5),), (peer,))
            comm.mix(torch.ones(numel), torch.zeros(numel), row, "models").wait()

        return work

    ends = outcomes(kind, mixing(4), mixing(6))
    assert [type(end) for end in ends] == [CallMismatch] * 2


@pytest.mark.parametrize("kind", ["shm", "thread"])
def test_more_operations_than_notes_may_be_under_way(kind):
    def work(comm):
        source, result = comm.allocate(2000, torch.float32), comm.allocate_result(2000, torch.float32)
        source.copy_(torch.arange(2000.0))
        works = [comm.all_sum(source[k : k + 1], result[k : k + 1], f"piece {k}") for k in range(2000)]
        works[-1].wait()
        return torch.equal(result, 2 * torch.arange(2000.0))

    assert outcomes(kind, work, work) == [True, True]


def test_long_notes_that_differ_at_the_end_differ():
    texts = {call_text("broadcast", "4 float32", "layer." * 40 + end) for end in ("weight", "bias")}
    assert len(texts) == 2
    assert all(len(text) == LENGTH for text in texts)


def test_the_file_of_calls_never_replaces_one_that_was_there(tmp_path):
    theirs = tmp_path / "rank-0.call"
    theirs.write_text("precious")
    with pytest.raises(FileExistsError):
        CallFile(theirs)
    assert theirs.read_text() == "precious"


@pytest.mark.parametrize("failed", [True, False])
def test_the_file_of_calls_stays_for_the_launcher_after_a_failure_only(tmp_path, failed):
    path = tmp_path / "rank-0.call"
    file = CallFile(path)
    file.write(call_text("barrier", "", ""))
    assert path.read_text().strip() == "barrier"
    file.close(failed)
    assert path.exists() is failed

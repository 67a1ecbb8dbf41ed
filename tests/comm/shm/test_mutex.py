"""Locks in shared memory: one holder at a time, deadlines that name it, and holders that die without releasing."""

import threading

import pytest
import torch

from paceline.comm.shm.mutex import HOLDER, LINE, Lock, ProcessMutex
from paceline.errors import PeerLost, WrongCommand


class Ranks:
    """Counters of four ranks, some of which are gone."""

    size = 4

    def __init__(self, gone=()):
        self._gone = gone

    def name(self, rank):
        return f"rank {rank}"

    def check_process(self):
        pass

    def why_lost(self, rank):
        return "left the group" if rank in self._gone else None


@pytest.fixture
def line():
    found = torch.zeros(LINE, dtype=torch.uint8)
    ProcessMutex(found.data_ptr()).create()
    return found


def lock(line, rank, gone=()):
    return Lock(ProcessMutex(line.data_ptr()), line, rank, Ranks(gone), 10.0)


def in_thread(body):
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()


def test_a_lock_keeps_others_out_and_lets_them_in_again(line):
    said = []

    def other():
        try:
            with lock(line, 2).held("the buffer", 0.01):
                said.append("in")
        except PeerLost as problem:
            said.append((str(problem).partition(" within")[0], problem.rank))

    with lock(line, 1).held("the buffer") as numbers:
        assert numbers[HOLDER] == 2
        in_thread(other)
    in_thread(other)
    assert said == [("rank 1 did not release the buffer", 1), "in"]


def test_a_holder_that_ended_is_named_to_all_who_come(line):
    def ends():
        held = lock(line, 3)
        held._acquire("the buffer", 1.0)
        held.numbers[HOLDER] = 3 + 1

    in_thread(ends)  # the kernel tells of a thread that ended as of a process that did
    for _ in range(2):
        with pytest.raises(PeerLost, match="rank 3 died while it held the buffer: it may be half written") as caught:
            lock(line, 0)._acquire("the buffer", 1.0)
        assert caught.value.rank == 3


def test_a_holder_that_had_no_time_to_write_its_name_is_found_among_those_gone(line):
    in_thread(lambda: lock(line, 3)._acquire("the buffer", 1.0))
    with pytest.raises(PeerLost, match="rank 2 died while it held the buffer"):
        lock(line, 0, gone=(2,))._acquire("the buffer", 1.0)


def test_a_lock_that_is_taken_twice_is_told(line):
    with lock(line, 1).held("it"), pytest.raises(WrongCommand, match="holds it already"):
        lock(line, 1)._acquire("it", 1.0)

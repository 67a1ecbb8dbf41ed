"""Segments that ranks map: no descriptor stays open, and a mapping goes with the last tensor in it."""

import gc
import os
import threading
from pathlib import Path

import pytest
import torch

from paceline.comm import memory
from paceline.comm.shm import ShmComm
from paceline.comm.store import MemoryStore


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mapped(address):
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)


def attached(nbytes):
    number = memory.create(nbytes)
    try:
        return memory.attach(number, nbytes)
    finally:
        os.close(number)


@pytest.mark.parametrize("folder", [None, memory.FOLDER])
def test_vectors_keep_no_descriptors_open(folder):
    gc.collect()  # of tests before this one
    store, before, comms = MemoryStore(), descriptors(), []

    def work(rank):
        comm = ShmComm(rank, 2, store, 30, folder)
        comms.append((comm, [comm.allocate(100, torch.float32) for _ in range(50)]))
        mine = comms[-1][1][0].fill_(1 + rank)
        total = comm.allocate_result(100, torch.float32)
        comm.all_sum(mine, total).wait()
        assert total.unique().tolist() == [3]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(comms) == 2
    assert descriptors() == before
    for comm, _ in comms:
        comm.close()


def test_a_mapping_goes_with_the_last_tensor_in_it():
    whole = attached(2 * 4096)
    address, part = whole.data_ptr(), whole[4096:].view(torch.int64)
    del whole
    part.fill_(7)
    assert part.sum() == 7 * 512
    assert mapped(address)
    del part
    assert not mapped(address)


def test_two_mappings_of_a_segment_are_one_memory():
    number = memory.create(4096)
    first, second = memory.attach(number, 4096), memory.attach_from(os.getpid(), number, 4096)
    os.close(number)
    first[5] = 9
    assert second[5] == 9
    assert first.data_ptr() != second.data_ptr()


def test_a_segment_that_is_too_short_is_refused_before_it_is_touched():
    number = memory.create(4096)
    try:
        with pytest.raises(ValueError, match="4096 bytes is too short for 8192"):
            memory.attach(number, 8192)
        with pytest.raises(OSError, match="Invalid argument"):
            memory.attach(number, 0)
    finally:
        os.close(number)

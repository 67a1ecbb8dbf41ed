"""Segments that ranks map: no descriptor stays open, and a segment is unmapped with its last tensor."""

import gc
import os
import threading
from pathlib import Path

import pytest
import torch

from paceline.comm.rendezvous import MemoryStore
from paceline.comm.shm import memory
from paceline.comm.shm.shm import ShmComm
from paceline.errors import PeerLost

KEY = memory.new_key()


def in_threads(work):
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mapped(address):
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)


def attached(nbytes):
    number = memory.create(nbytes, KEY)
    try:
        return memory.attach(number, nbytes)
    finally:
        os.close(number)


def test_a_rank_whose_peer_never_comes_keeps_no_descriptor_open():
    """An elastic worker lives on, and would keep a segment for every peer that died while both entered a group."""
    gc.collect()
    before, lost = descriptors(), []
    with pytest.raises(PeerLost):
        ShmComm(0, 2, MemoryStore(), 0.3)
    gc.collect()
    assert descriptors() == before
    store, comms = MemoryStore(), {}

    def work(rank):
        comms[rank] = ShmComm(rank, 2, store, 2)

    in_threads(work)
    made = descriptors()
    for allocate in (comms[0].allocate, comms[0].allocate_result):
        try:
            allocate(100, torch.float32)
        except PeerLost as problem:
            lost.append(problem)
    assert len(lost) == 2
    lost.clear()
    gc.collect()
    assert descriptors() == made
    in_threads(lambda rank: comms[rank].close("failed"))


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

    in_threads(work)
    assert len(comms) == 2
    assert descriptors() == before
    in_threads(lambda rank: comms[rank][0].close())


def test_a_mapping_goes_with_the_last_tensor_in_it():
    whole = attached(2 * 4096)
    address, part = whole.data_ptr(), whole[4096:].view(torch.int64)
    del whole
    part.fill_(7)
    assert part.sum() == 7 * 512
    assert mapped(address)
    del part
    assert not mapped(address)


@pytest.mark.parametrize("folder", [None, memory.FOLDER])
def test_two_mappings_of_a_segment_are_one_memory(folder):
    number = memory.create(4096, KEY, folder)
    first = memory.attach(number, 4096)
    second = memory.attach_from(memory.announce(number), KEY, 4096)
    os.close(number)
    first[5] = 9
    assert second[5] == 9
    assert first.data_ptr() != second.data_ptr()


def test_a_segment_that_is_too_short_is_refused_before_it_is_touched():
    number = memory.create(4096, KEY)
    try:
        with pytest.raises(ValueError, match="bytes is too short for 8192"):
            memory.attach(number, 8192)
        with pytest.raises(OSError, match="Invalid argument"):
            memory.attach(number, 0)
    finally:
        os.close(number)


def replaced(path, announced):
    """Open another file under the descriptor number of a closed segment."""
    other = os.open(path, os.O_RDONLY)
    os.dup2(other, announced.number)
    os.close(other)


@pytest.mark.parametrize("folder", [None, memory.FOLDER])
def test_a_file_that_took_over_the_number_is_neither_mapped_nor_opened(tmp_path, folder, monkeypatch):
    precious = tmp_path / "precious.dat"
    number = memory.create(4096, KEY, folder)
    announced = memory.announce(number)
    precious.write_bytes(bytes(announced.nbytes))  # as long as the segment was
    replaced(precious, announced)
    flags, real = [], os.open
    monkeypatch.setattr(memory.os, "open", lambda name, how: flags.append(how) or real(name, how))
    with pytest.raises(PeerLost, match=f"process {os.getpid()} announced is not there: another file has its descr"):
        memory.attach_from(announced, KEY, 4096)
    monkeypatch.undo()
    os.close(number)
    assert flags == [os.O_PATH | os.O_CLOEXEC]
    assert precious.read_bytes() == bytes(announced.nbytes)


def test_a_segment_of_another_job_is_refused():
    number = memory.create(4096, memory.new_key())
    try:
        with pytest.raises(PeerLost, match="its key is that of another job"):
            memory.attach_from(memory.announce(number), KEY, 4096)
    finally:
        os.close(number)


def test_a_segment_that_is_closed_is_refused():
    number = memory.create(4096, KEY)
    announced = memory.announce(number)
    os.close(number)
    with pytest.raises(PeerLost, match=r"No such file.*try: start all ranks of the job together"):
        memory.attach_from(announced, KEY, 4096)


def test_nobody_can_resize_a_segment():
    number = memory.create(4096, KEY)
    try:
        for length in (0, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(number, length)
    finally:
        os.close(number)

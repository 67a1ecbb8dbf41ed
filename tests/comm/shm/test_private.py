"""A private mapping shows what others write and hides what this process writes."""

import os
import threading

import pytest
import torch

from paceline.comm.shm import memory
from paceline.comm.shm.private import PrivateView

NUMEL = 5000  # about five pages of float32


@pytest.fixture
def both():
    """A shared vector and the private view of it."""
    number = memory.create(4 * NUMEL, memory.new_key())
    shared = memory.attach(number, 4 * NUMEL).view(torch.float32)
    private = PrivateView(memory.attach(number, 4 * NUMEL, private=True), NUMEL, torch.float32)
    os.close(number)
    shared.copy_(torch.arange(NUMEL))
    return shared, private


def test_what_others_write_appears(both):
    shared, private = both
    assert torch.equal(private.vector, shared)
    shared.mul_(2)
    assert torch.equal(private.vector, shared)
    assert not private.written(), "reading copies nothing"


WRITES = {
    "mul_": lambda vector: vector[10:20].mul_(3),
    "data": lambda vector: vector.data.mul_(0),
    "numpy": lambda vector: vector.numpy().__setitem__(NUMEL - 1, 7),
    "the same value": lambda vector: vector[:1].add_(0),
    "another thread": lambda vector: run_in_thread(lambda: vector[4000:].zero_()),
    "the kernel": lambda vector: read_zeros(memoryview(vector.numpy()).cast("B")[5000:5010]),
}


def read_zeros(buffer):
    with open("/dev/zero", "rb", buffering=0) as zeros:
        zeros.readinto(buffer)


def run_in_thread(act):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize("counted", [False, True], ids=["looks", "counts"])
@pytest.mark.parametrize("write", WRITES)
def test_a_write_stays_here_is_noticed_and_can_be_dropped(both, write, counted):
    shared, private = both
    if counted:
        assert private.works()
    assert not private.written()
    private.vector.sum()
    assert not private.written()
    before = shared.clone()
    WRITES[write](private.vector)
    assert torch.equal(shared, before)
    assert private.written()
    private.drop()
    assert not private.written()
    shared.add_(1)
    assert torch.equal(private.vector, shared)


def test_without_a_drop_a_written_page_hides_the_next_result(both):
    shared, private = both
    private.vector[0] = -1
    shared.add_(1)
    assert private.vector[0] == -1
    assert private.vector[-1] == shared[-1]


def test_a_view_says_whether_it_can_be_trusted(both, monkeypatch):
    shared, private = both
    assert private.works()
    assert torch.equal(private.vector, shared)
    monkeypatch.setattr("paceline.comm.shm.private.PAGEMAP", "/proc/self/no-such-file")
    assert not private.works()


def test_pages_are_not_looked_at_without_a_page_fault(both, monkeypatch):
    _, private = both
    assert private.works()
    private.vector.sum()
    assert not private.written()
    monkeypatch.setattr(private, "_has_copies", lambda: pytest.fail("looked at pages"))
    monkeypatch.setattr("paceline.comm.shm.private._page_faults", lambda: private._clean)
    assert not private.written()


def test_where_page_faults_are_not_counted_pages_are_always_looked_at(both, monkeypatch):
    _, private = both
    monkeypatch.setattr("paceline.comm.shm.private._page_faults", lambda: 0)
    assert private.works()
    assert not private.written()
    private.vector[0] = 5
    assert private.written()

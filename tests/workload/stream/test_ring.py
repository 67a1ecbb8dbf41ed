"""The queue in shared memory, with real producers: the right batches, in place, and what happens when one dies."""

import errno
import fcntl
import os
import signal

import pytest
import torch
from torch.utils.data import Dataset

from paceline.errors import BadMember, WorkloadError
from paceline.types import View
from paceline.workload.sources import MENU
from paceline.workload.stream import layout
from paceline.workload.stream.ring import _reserved

pytestmark = pytest.mark.multi
SETTINGS = {
    "model": "mlp(hidden=4)",
    "classes": None,
    "image_size": None,
    "sequence_length": None,
    "seed": 3,
    "batch": 5,
}


class Numbers(Dataset):
    """Forty samples; `broken` is one that cannot be read."""

    def __init__(self, broken=-1):
        self.broken = broken

    def __len__(self):
        return 40

    def __getitem__(self, k):
        if k == self.broken:
            raise RuntimeError("sample 7 is not there")
        return torch.full((300,), float(k)), k


def numbers():
    return Numbers()


def broken():
    return Numbers(broken=7)


@pytest.fixture
def opened():
    streams = []

    def open_(text, view=View(0, 1), **changes):  # noqa: B008 a frozen value
        stream = MENU.make(text).open(view, {**SETTINGS, **changes})
        streams.append(stream)
        return stream

    yield open_
    for stream in streams:
        stream.close()


def queue(function, settings=""):
    return f"queue(dataset(tests.workload.stream.test_ring:{function}){settings})"


def take(stream, count):
    return [stream.take()[1].tolist() for _ in range(count)]


def test_two_producers_together_go_through_the_source_in_its_order(opened):
    order = MENU.make("dataset(tests.workload.stream.test_ring:numbers)").order(5, 3)
    stream = opened(queue("numbers", ", producers=2, slots=2"))
    for epoch in range(2):
        for step in range(8):
            rows, labels = stream.take()
            assert labels.tolist() == order.ids(epoch, step).tolist()
            assert torch.equal(rows, labels.float()[:, None].expand(5, 300))


def test_a_batch_that_is_kept_keeps_its_slot_and_its_content(opened):
    stream = opened(queue("numbers", ", slots=3, timeout=60"))
    first = stream.take()
    copy = first[0].clone()
    for _ in range(10):
        stream.take()
    assert torch.equal(first[0], copy)


def test_a_forked_child_gives_no_slot_of_its_parent_back(opened):
    """The producer would write into a batch that the parent still uses."""
    stream = opened(queue("numbers", ", slots=2, timeout=60"))
    first = stream.take()
    copy = first[0].clone()
    child = os.fork()
    if child == 0:
        del first
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(6):
        stream.take()
    assert torch.equal(first[0], copy)


def test_batches_that_keep_all_slots_are_named(opened):
    stream = opened(queue("numbers", ", slots=2, timeout=60"))
    kept = [stream.take(), stream.take()]
    stream._rings[0]._line.settimeout(0.3)
    with pytest.raises(WorkloadError, match=r"no batch came for 0.3 s.*slots=8"):
        stream.take()
    del kept
    stream._rings[0]._line.settimeout(60)
    stream.take()


def test_a_producer_that_is_killed_is_named(opened):
    stream = opened(queue("numbers", ", slots=2"))
    stream.take()
    os.kill(stream._rings[0]._process.pid, signal.SIGKILL)
    with pytest.raises(WorkloadError, match=r"the producer of source queue.* it ended with signal 9"):
        take(stream, 5)


@pytest.mark.parametrize(
    ("nbytes", "seals", "why"),
    [
        (4096, fcntl.F_SEAL_SHRINK, r"its memory has 4,096 bytes, and its layout needs 128"),
        (64, fcntl.F_SEAL_SHRINK, r"its memory has 64 bytes, and its layout needs 128"),
        (128, 0, "its memory could be cut while it is read"),
        (128, fcntl.F_SEAL_SHRINK, ""),
    ],
)
def test_a_memory_that_does_not_fit_its_layout_is_refused(opened, nbytes, seals, why):
    """Reading beyond the end of a mapped file would kill the worker with SIGBUS."""
    ring = opened(queue("numbers", ", slots=2"))._rings[0]
    ring._memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(ring._memory, nbytes)
    fcntl.fcntl(ring._memory, fcntl.F_ADD_SEALS, seals)
    message = b"L" + layout.write([layout.Field("float32", (5,))])
    if not why:
        ring._open(message)
        return
    with pytest.raises(WorkloadError, match=why):
        ring._open(message)
    assert ring._space is None


def test_too_little_memory_for_the_slots_is_named(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "x")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WorkloadError, match=r"shared memory of 5 MB: No space left.*fewer slots"):
        _reserved(5_000_000, "it")


def test_an_error_of_the_data_reaches_the_worker(opened):
    stream = opened(queue("broken"))
    with pytest.raises(WorkloadError, match=r"exit code 1: RuntimeError: sample 7 is not there"):
        take(stream, 9)


def test_a_source_with_fewer_batches_than_producers_is_refused(opened):
    with pytest.raises(WorkloadError, match=r"9 producers of source .* it has 8 batches of 5"):
        opened(queue("numbers"), View(2, 9)).take()


def test_a_queue_of_a_stream_and_settings_out_of_range_are_refused():
    with pytest.raises(BadMember, match="a stream already"):
        MENU.make("queue(zmq(tcp://127.0.0.1:5555))")
    for settings in ("producers=0", "slots=1", "timeout=0"):
        with pytest.raises(BadMember, match="slots 2 to 64"):
            MENU.make(f"queue(fake, {settings})")

"""What can be seen of the nccl path without a GPU: who blocks the host, and where tensors of the host travel."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch

from paceline.comm.nccl import NcclComm
from paceline.comm.torchdist import GlooComm
from paceline.comm.torchwork import Together, TorchWork
from paceline.errors import PeerLost


class Work:
    """Writes down what it was told to wait for."""

    def __init__(self) -> None:
        self.limits = []

    def wait(self, *limit):
        self.limits.append(limit)


def bare(kind):
    """A comm without a process group."""
    comm = kind.__new__(kind)
    comm.rank, comm.deadline = 0, 30.0
    return comm


@pytest.mark.parametrize(
    ("kind", "asked", "told"),
    [
        (GlooComm, None, (timedelta(seconds=30),)),
        (GlooComm, 2.0, (timedelta(seconds=2),)),
        (NcclComm, None, ()),  # with a limit, torch would block the host until the GPU is done
        (NcclComm, 2.0, (timedelta(seconds=2),)),
    ],
)
def test_only_a_deadline_that_was_given_blocks_the_host_of_a_gpu(kind, asked, told):
    works = [Work(), Work()]
    TorchWork(bare(kind), Together(works), "all_sum").wait(asked)
    assert [work.limits for work in works] == [[told], [told]]


def test_tensors_of_the_host_travel_through_the_gpu_and_come_back_when_waited_for():
    comm = bare(NcclComm)
    comm._device = lambda: torch.device("cpu")  # plays the GPU
    src = SimpleNamespace(device=torch.device("meta"), to=lambda device: torch.ones(3, device=device))
    dst = torch.zeros(3)

    def start(moved, there, key):
        assert there is not dst
        there.copy_(2 * moved)
        return TorchWork(comm, Work(), key)

    work = comm._on_device(start, src, dst, "a table")
    assert dst.tolist() == [0, 0, 0]
    work.wait()
    assert dst.tolist() == [2, 2, 2]


def test_tensors_that_are_there_already_are_not_copied():
    comm = bare(NcclComm)
    comm._device = lambda: torch.device("cpu")
    src, dst = torch.ones(3), torch.zeros(3)
    given = comm._on_device(lambda *given: given, src, dst, "")
    assert given[0] is src
    assert given[1] is dst


def test_what_is_left_to_do_is_done_in_order():
    done = []
    TorchWork(bare(GlooComm), Work(), "", lambda: done.append(1)).then(lambda: done.append(2)).wait()
    assert done == [1, 2]


def test_what_torch_says_of_a_silent_rank_is_told_with_the_call():
    class Silent:
        def wait(self, *limit):
            raise RuntimeError("Operation timed out!\nException raised from wait at Work.cpp")

    with pytest.raises(PeerLost) as caught:
        TorchWork(bare(GlooComm), Silent(), "all_sum of chunk 7 at step 812").wait(0.1)
    told = "a rank stopped answering rank 0 in all_sum of chunk 7 at step 812: Operation timed out!"
    assert str(caught.value) == told

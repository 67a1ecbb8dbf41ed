"""The nccl path as far as it can be tested without a GPU: when the host blocks, and how host tensors travel."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from paceline.comm.torch.gloo import LAST_TAG, GlooComm
from paceline.comm.torch.nccl import NcclComm
from paceline.comm.torch.served import NUMBERS
from paceline.comm.torch.work import TorchWork, TorchWorks
from paceline.errors import PeerLost
from paceline.types import Mixing, Piece


class Work:
    """A work that records its time limit."""

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
    TorchWork(bare(kind), TorchWorks(works), "all_sum").wait(asked)
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


def test_tags_stay_below_the_last_one_and_follow_the_call():
    ours, theirs = bare(GlooComm), bare(GlooComm)
    for comm in (ours, theirs):
        comm._tags = LAST_TAG - 2
    same = [ours._tag(b"mix of 4 float32") for _ in range(9)]
    assert [theirs._tag(b"mix of 4 float32") for _ in range(9)] == same
    assert all(0 <= tag <= LAST_TAG for tag in same)
    assert len(set(same)) == 9, "messages under way together differ"
    assert ours._tag(b"mix of 4 float32") != theirs._tag(b"mix of 6 float32")


def sums_near_the_last_tag(rank, folder):
    """Mixes and sums by owners over the end of the tags; every result is right."""
    comm = GlooComm(rank, 2, dist.FileStore(f"{folder}/store", 2), deadline=60.0)
    comm._tags = LAST_TAG - 4
    x, out = torch.full((4,), 1.0 + rank), torch.zeros(4)
    for _ in range(6):
        comm.sum_by(x, out, [Piece(0, 0, 2), Piece(1, 2, 4)], 2).wait()
        assert out.tolist() == [3.0] * 4
        comm.mix(x, out, Mixing(0.5, ((1 - rank, 0.5),), (1 - rank,))).wait()
        assert out.tolist() == [1.5] * 4
    assert comm._tags < 100
    window = comm.window(4, torch.float32, [[1], [0]])
    comm._windows._numbers = NUMBERS - 2
    for _ in range(4):
        window.put(1 - rank, x).wait()
        window.get(1 - rank).wait()
    assert 0 < comm._windows._numbers < 100
    comm.barrier()
    comm.close()


@pytest.mark.multi
def test_real_messages_go_on_past_the_last_tag(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(sums_near_the_last_tag, (str(tmp_path),), nprocs=2)


def test_what_torch_says_of_a_silent_rank_is_told_with_the_call():
    class Silent:
        def wait(self, *limit):
            raise RuntimeError("Operation timed out!\nException raised from wait at Work.cpp")

    with pytest.raises(PeerLost) as caught:
        TorchWork(bare(GlooComm), Silent(), "all_sum of chunk 7 at step 812").wait(0.1)
    told = "a rank stopped answering rank 0 in all_sum of chunk 7 at step 812: Operation timed out!"
    assert str(caught.value) == told

"""What every comm promises. `thread` runs here; `shm` and `gloo` go through the same laws in tests/multi."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import PeerLost
from tests.laws.comm_laws import LAWS

SIZES = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_thread_keeps_the_law(law, size):
    run_ranks(size, law)


def test_a_failed_rank_is_named_by_the_others():
    told = {}

    def work(comm):
        comm.get_ready()
        if comm.rank == 1:
            raise RuntimeError("boom")
        with pytest.raises(PeerLost) as caught:
            comm.all_sum(torch.ones(4), torch.empty(4), "chunk 7 at step 812").wait(5)
        told[comm.rank] = (str(caught.value), caught.value.rank)

    with pytest.raises(RuntimeError, match="boom"):
        run_ranks(3, work)
    assert told == dict.fromkeys((0, 2), ("rank 1 failed during all_sum of chunk 7 at step 812", 1))

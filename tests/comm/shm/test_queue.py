"""The counters of a queue have 32 bits and may wrap around."""

import pytest
import torch

from paceline.comm.shm.queue import POSTED, SHARED, Op, Queue, _past
from paceline.comm.thread import run_ranks
from paceline.comm.transport import Work
from paceline.errors import PeerLost


def test_a_counter_that_has_wrapped_is_above_the_number_before():
    last = 2**32 - 1
    assert _past(last, last - 1)
    assert not _past(last, last)
    assert _past(0, last)


def test_numbers_go_on_where_counters_wrap():
    assert _past(5, 2**32 + 4)
    assert not _past(4, 2**32 + 4)


class Recorded:
    """Counters of four ranks that never move, which record what a rank sleeps on."""

    rank, size = 0, 4

    def __init__(self):
        self.counts, self.notes, self.slept = [[0] * 4, [0] * 4], {}, []

    def check_process(self):
        pass

    def value(self, kind, rank):
        return self.counts[kind][rank]

    def bump(self, kind):
        self.counts[kind][0] += 1

    def note(self, number, text):
        self.notes[number] = text

    def noted(self, rank, number):
        return self.notes[number]

    def sleep(self, words, seconds):
        self.slept.append(words)

    def why_lost(self, rank):
        return None

    def name(self, rank):
        return f"rank {rank}"


def test_a_rank_that_waits_for_a_reader_also_wakes_for_a_rank_that_it_must_serve():
    """One-way ring: rank 1 is slow to read chunk 0 of rank 0; rank 3, which rank 0 hears, comes with chunk 1."""
    counters = Recorded()
    queue = Queue(counters, 0.05)
    first, second = Op("mix", "chunk 0"), Op("mix", "chunk 1")
    for op in (first, second):
        op.waits_for, op.readers = (0, 3), (0, 1)
    counters.counts[POSTED][3] = 1
    works = [queue.submit(op) for op in (first, second)]
    with pytest.raises(PeerLost, match="rank 1 stopped answering in mix of chunk 0"):
        works[0].wait()
    assert (SHARED, 1, 0) in counters.slept[0]
    assert (POSTED, 3, 1) in counters.slept[0]


@pytest.mark.parametrize("copies_out", [False, True])
def test_a_rank_that_waits_for_a_post_wakes_for_older_operations_only_if_they_copy_results_out(copies_out):
    counters = Recorded()
    queue = Queue(counters, 0.05)
    first, second = Op("all_sum", "chunk 0"), Op("all_sum", "chunk 1")
    for op in (first, second):
        op.waits_for = op.readers = (0, 3)
    first.finish = (lambda: None) if copies_out else None
    counters.counts[POSTED][3] = 1
    works = [queue.submit(op) for op in (first, second)]
    with pytest.raises(PeerLost, match="rank 3 stopped answering in all_sum of chunk 1"):
        works[1].wait()
    assert counters.slept[0] == [(POSTED, 3, 1), (SHARED, 3, 0)][: 1 + copies_out]


class UnderWay(Work):
    """A share that somebody else finishes."""

    def __init__(self):
        self.over = False

    def wait(self, deadline=None):
        raise AssertionError("the queue looks and never blocks here")

    def done(self):
        return self.over


def test_a_share_under_way_is_counted_when_it_is_done_and_in_order():
    counters = Recorded()
    queue, share = Queue(counters, 1.0), UnderWay()
    first, second = Op("all_sum", "crosses hosts", lambda: share), Op("all_sum", "does not")
    for op in (first, second):
        op.waits_for, op.readers, op.early = (0,), (0,), True
    works = [queue.submit(op) for op in (first, second)]
    assert not works[0].done()
    assert not works[1].done(), "it waits behind the first"
    assert counters.counts[SHARED][0] == 0
    share.over = True
    assert works[1].done()
    assert works[0].done()
    assert counters.counts[SHARED][0] == 2


def test_a_share_that_never_ends_is_given_up_at_the_deadline():
    queue = Queue(Recorded(), 0.05)
    op = Op("all_sum", "chunk 3 at step 7", UnderWay)
    op.waits_for, op.readers = (0,), (0,)
    with pytest.raises(PeerLost, match="a rank of another host stopped answering in all_sum of chunk 3 at step 7"):
        queue.submit(op).wait()


def test_a_queue_that_waits_serves_its_siblings():
    """Rank 0 waits in one queue for rank 1, which waits for the share of rank 0 in another queue of the same ranks."""

    def work(comm):
        halves, out = comm.split([[0, 1]]), torch.zeros(4)
        if comm.rank == 0:
            late = halves.all_sum(torch.ones(4), torch.zeros(4), "posted first, waited for last")
            comm.all_sum(torch.ones(4), out, "waited for first").wait(20)
            late.wait(20)
        else:
            halves.all_sum(torch.ones(4), torch.zeros(4), "posted first, waited for last").wait(20)
            comm.all_sum(torch.ones(4), out, "waited for first").wait(20)
        return out[0].item()

    assert run_ranks(2, work) == [2.0, 2.0]

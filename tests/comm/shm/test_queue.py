"""The counters of a queue have 32 bits and may wrap around."""

import pytest

from paceline.comm.shm.queue import POSTED, SHARED, Op, Queue, _past
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

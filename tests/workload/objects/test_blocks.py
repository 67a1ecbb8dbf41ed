"""Blocks: every one is read once, ahead of its use, within a budget."""

import threading

import pytest

from paceline.workload.objects import blocks
from paceline.workload.objects.address import Item
from paceline.workload.objects.blocks import Blocks
from paceline.workload.objects.bucket import Counts

CONTENT = bytes(range(256)) * 4


class Memory:
    """A bucket in memory that writes down its requests."""

    def __init__(self):
        self.counts, self.requests, self.fails = Counts(), [], False
        self.gate = threading.Event()
        self.gate.set()

    def read(self, item, start, stop):
        self.requests.append(start)
        assert self.gate.wait(60)
        if self.fails:
            raise ValueError("no")
        return memoryview(CONTENT)[start:stop]


@pytest.fixture
def bucket(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 100)
    return Memory()


ITEM = Item("b", "k", len(CONTENT), "t")


def test_records_in_any_order_within_a_window_take_one_request_per_block(bucket):
    reader = Blocks(bucket)
    for start in (30, 0, 90, 60, 150, 120, *range(180, 1024, 30)):
        count = min(30, 1024 - start)
        assert bytes(reader.read(ITEM, start, count)) == CONTENT[start : start + count]
    reader.close()
    assert sorted(bucket.requests) == list(range(0, 1024, 100))
    assert not reader._blocks
    assert bucket.counts.again == 0


def test_a_sample_that_comes_twice_does_not_drop_its_block_early(bucket):
    reader = Blocks(bucket)
    for _ in range(5):
        reader.read(ITEM, 0, 30)
    reader.read(ITEM, 30, 70)
    reader.close()
    assert bucket.requests.count(0) == 1


def test_a_record_longer_than_a_block_is_put_together(bucket):
    reader = Blocks(bucket)
    assert bytes(reader.read(ITEM, 50, 333)) == CONTENT[50:383]
    reader.close()


def settle(reader):
    with reader._changed:
        assert reader._changed.wait_for(lambda: not reader._threads, timeout=60)


def test_what_is_expected_is_fetched_before_it_is_read(bucket):
    reader = Blocks(bucket)
    reader.expect(ITEM, 250, 10)
    settle(reader)
    assert bucket.requests == [200]
    assert bytes(reader.read(ITEM, 250, 10)) == CONTENT[250:260]
    reader.close()
    assert bucket.requests.count(200) == 1


def test_memory_stays_within_the_budget_and_reading_again_is_counted(bucket):
    reader = Blocks(bucket, budget=250)
    for start in (0, 500, 900):
        reader.read(ITEM, start, 10)
        assert sum(block.stop - block.start for block in reader._blocks.values()) <= 250
    assert bytes(reader.read(ITEM, 10, 20)) == CONTENT[10:30]
    reader.close()
    assert bucket.counts.again == 1


def test_a_failure_ahead_is_raised_where_the_block_is_used(bucket):
    reader = Blocks(bucket)
    bucket.fails = True
    reader.expect(ITEM, 0, 10)
    settle(reader)
    with pytest.raises(ValueError, match="no"):
        reader.read(ITEM, 0, 10)
    bucket.fails = False
    assert bytes(reader.read(ITEM, 0, 10)) == CONTENT[:10]
    reader.close()


def test_closing_forgets_requests_that_wait(bucket):
    reader = Blocks(bucket)
    bucket.gate.clear()
    reader.expect(ITEM, 0, 1024)
    threading.Timer(0.05, bucket.gate.set).start()
    reader.close()
    assert len(bucket.requests) <= 11
    assert bytes(reader.read(ITEM, 1000, 24)) == CONTENT[1000:]
    reader.close()

"""The order of samples in global batches."""

import pytest
import torch

from paceline.errors import WrongCommand
from paceline.types import Cursor
from paceline.workload.order import Laned, Permuted, after, permutation

SAMPLES, BATCH = 103, 10
SHARDS = (770, 1, 0, 1201, 333, 900, 64, 2048, 7, 1500, 1024, 1100, 1059)  # 10,007 in all
ORDERS = [
    Permuted(SAMPLES, BATCH, seed=3),
    Laned((40, 3, 0, 50, 10), BATCH, lanes=4, window=8, seed=3),
    Laned((103,), BATCH, lanes=1, window=1000, seed=3),
    Laned((1,) * 103, BATCH, lanes=16, window=4, seed=3),
]


def together(order, epoch, step, parts):
    return torch.cat([order.ids(epoch, step, part, parts) for part in range(parts)])


def epoch_of(order, epoch, parts=1):
    return torch.cat([together(order, epoch, step, parts) for step in range(order.steps)])


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_the_sequence_is_the_same_for_any_number_of_parts_and_has_every_sample_once(order, parts):
    for epoch in (0, 4):
        sequence = epoch_of(order, epoch, parts)
        assert torch.equal(sequence, epoch_of(order, epoch))
        assert sorted(sequence.tolist()) == list(range(SAMPLES))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_batch_is_whole_but_the_last(order):
    sizes = [len(order.ids(1, step)) for step in range(order.steps)]
    assert order.steps == 11
    assert sizes == [10] * 10 + [3]
    with pytest.raises(IndexError, match="step 11 of an epoch with 11 steps"):
        order.ids(0, 11)


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_epochs_and_seeds_shuffle_differently(order):
    from dataclasses import replace

    first = epoch_of(order, 0)
    assert torch.equal(first, epoch_of(replace(order), 0))
    assert not torch.equal(first, epoch_of(order, 1))
    assert not torch.equal(first, epoch_of(replace(order, seed=4), 0))


@pytest.mark.parametrize("parts", [3, 4, 7])
def test_parts_of_a_permutation_differ_by_at_most_one(parts):
    order = Permuted(SAMPLES, BATCH)
    for step in (0, order.steps - 1):
        sizes = [len(order.ids(0, step, part, parts)) for part in range(parts)]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_10007_records_in_13_unequal_shards_come_once_per_epoch(parts):
    order = Laned(SHARDS, 256, lanes=8, window=100)
    assert sum(SHARDS) == 10_007
    for epoch in (0, 1):
        assert sorted(epoch_of(order, epoch, parts).tolist()) == list(range(10_007))


def test_a_shard_has_one_reader_and_a_sample_moves_by_less_than_the_window():
    order = Laned((100,) * 16, 32, lanes=8, window=10)
    readers = {}
    for step in range(order.steps):
        for part in range(4):
            for sample in order.ids(0, step, part, 4).tolist():
                readers.setdefault(sample // 100, set()).add(part)
    assert all(len(parts) == 1 for parts in readers.values())
    sequences, _ = order._epoch(0)
    for sequence in sequences:
        before = torch.cat([torch.arange(100) + 100 * int(k) for k in dict.fromkeys((sequence // 100).tolist())])
        places = {int(sample): place for place, sample in enumerate(before)}
        assert max(abs(places[int(sample)] - place) for place, sample in enumerate(sequence)) <= 10


def test_the_share_of_an_empty_lane_goes_to_the_others_in_lane_order():
    order = Laned((30, 2, 30, 30), 8, lanes=4, window=1)
    small = next(lane for lane, ids in enumerate(order._epoch(0)[0]) if len(ids) == 2)
    _, cuts = order._epoch(0)
    taken = [b - a for a, b in zip(cuts[1], cuts[2], strict=True)]
    first = min({0, 1, 2, 3} - {small})
    assert taken == [0 if lane == small else 4 if lane == first else 2 for lane in range(4)]


def test_without_shuffling_ids_stay_in_place_and_the_short_batch_can_be_dropped():
    order = Permuted(7, 3, shuffle=False)
    assert [order.ids(0, step).tolist() for step in range(order.steps)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert Permuted(7, 3, drop_last=True).steps == 2


@pytest.mark.parametrize("steps", [0, 1, 10, 11, 12, 35])
def test_a_cursor_moves_across_epochs(steps):
    order = ORDERS[0]
    cursor = after(order, Cursor(2, 8, 5), steps)
    assert cursor == Cursor(2 + (8 + steps) // 11, (8 + steps) % 11, 5)


def test_ordering_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    for order in ORDERS:
        epoch_of(order, 7)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(permutation(SAMPLES, seed=-3, epoch=0)) == SAMPLES


def test_a_source_smaller_than_a_global_batch_is_refused():
    assert Permuted(10, 10).steps == 1
    for order in (Permuted(9, 10), Laned((4, 5), 10)):
        with pytest.raises(WrongCommand, match="global batch 10: the source has only 9 samples"):
            _ = order.steps
    with pytest.raises(WrongCommand, match="at least one sample"):
        _ = Permuted(9, 0).steps
    with pytest.raises(WrongCommand, match="lanes=0"):
        Laned((4,), 2, lanes=0)

from itertools import zip_longest

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import WrongCommand
from paceline.types import View
from paceline.workload.loader import shares

NUMBERS = TensorDataset(torch.arange(50))


def seen(data, size, *, batch_size=None, epochs=range(1), seed=0, **settings):
    """The samples of every rank, batch by batch."""
    return [
        [
            dealt.batch[0].tolist()
            for dealt in shares(data, View(rank, size), batch_size=batch_size, epochs=epochs, seed=seed, **settings)
            if dealt.samples or not dealt.total
        ]
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("samples", [48, 49, 50, 51])
def test_every_sample_is_used_once_and_ranks_stay_level(size, samples):
    data = TensorDataset(torch.arange(samples))
    ranks = seen(data, size, batch_size=4)
    used = [number for batches in ranks for batch in batches for number in batch]
    assert sorted(used) == list(range(samples))
    dealt = [list(shares(data, View(r, size), batch_size=4, epochs=range(1), seed=0)) for r in range(size)]
    assert len({len(portions) for portions in dealt}) == 1
    for portions in zip(*dealt, strict=True):
        assert sum(portion.samples for portion in portions) == portions[0].total


def test_a_rank_without_a_sample_gets_a_stand_in_in_training_and_nothing_in_an_evaluation():
    data = TensorDataset(torch.arange(17))
    portions = list(shares(data, View(0, 4), batch_size=4, epochs=range(1), seed=0))
    assert [(portion.samples, portion.total) for portion in portions] == [(4, 16), (0, 1)]
    assert len(portions[1].batch[0]) == 1
    graded = list(shares(data, View(0, 4), batch_size=4, epochs=range(1), seed=0, training=lambda: False))
    assert len(graded) == 1


def test_the_short_batch_is_left_out_on_request():
    whole = [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19], [24, 25, 26, 27], [32, 33, 34, 35], [40, 41, 42, 43]]
    assert seen(DataLoader(NUMBERS, 4, drop_last=True), 2)[0] == whole
    assert len(seen(NUMBERS, 2, batch_size=4, drop_last=True)[0]) == 6
    assert len(seen(NUMBERS, 2, batch_size=4)[0]) == 7


def test_a_share_goes_on_in_the_middle_of_an_epoch():
    whole = seen(NUMBERS, 2, batch_size=4, epochs=range(2))
    assert seen(NUMBERS, 2, batch_size=4, epochs=range(2), start=5) == [batches[5:] for batches in whole]
    numbers = [[torch.tensor([k])] for k in range(9)]
    assert seen(iter_of(numbers), 2, start=2) == [[[4], [6], [8]], [[5], [7]]]


def test_one_sequence_whatever_the_number_of_workers():
    alone = seen(NUMBERS, 1, batch_size=12)[0]
    for size in (2, 3, 4):
        together = zip_longest(*seen(NUMBERS, size, batch_size=12 // size), fillvalue=())
        assert [[n for part in parts for n in part] for parts in together] == alone


def test_epochs_have_other_orders_and_a_loader_keeps_its_own_shuffling():
    first, second = seen(NUMBERS, 1, batch_size=50, epochs=range(2))[0]
    assert first != second
    assert sorted(first) == sorted(second)
    assert seen(DataLoader(NUMBERS, 5, shuffle=False), 2)[1][0] == [5, 6, 7, 8, 9]
    assert seen(DataLoader(NUMBERS, 5, shuffle=True), 1)[0][0] != [0, 1, 2, 3, 4]


def test_a_sampler_of_ones_own_is_refused_and_a_distributed_one_kept():
    with pytest.raises(WrongCommand, match="WeightedRandomSampler"):
        seen(DataLoader(NUMBERS, 5, sampler=WeightedRandomSampler([1.0] * 50, 50)), 2)
    sampler = DistributedSampler(NUMBERS, 2, 1, shuffle=False)
    kept = list(shares(DataLoader(NUMBERS, 5, sampler=sampler), View(1, 2), batch_size=None, epochs=range(1), seed=0))
    assert kept[0].batch[0].tolist() == [1, 3, 5, 7, 9]


def test_batches_of_any_iterable_are_dealt_in_rounds():
    batches = [[torch.tensor([k])] for k in range(7)]
    assert seen(iter_of(batches), 3) == [[[0], [3], [6]], [[1], [4]], [[2], [5]]]


def iter_of(batches):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(batches)

    return DataLoader(Stream(), batch_size=None)


class Counting(IterableDataset):
    """Single samples; one that knows its length is no less a stream."""

    def __iter__(self):
        return iter([(torch.tensor(k),) for k in range(11)])

    def __len__(self):
        return 11


def test_samples_of_a_stream_are_batched():
    assert seen(Counting(), 2, batch_size=2) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]
    assert seen(Counting(), 2, batch_size=2, drop_last=True)[1] == [[2, 3], [6, 7]]
    assert seen(DataLoader(Counting(), 2), 2) == [[[0, 1], [4, 5], [8, 9]], [[2, 3], [6, 7], [10]]]
    assert seen(Counting(), 2)[1] == [1, 3, 5, 7, 9], "without a batch size it gives batches itself"


def test_a_batch_size_that_cannot_be_used_is_refused():
    sampler = DistributedSampler(NUMBERS, 2, 0)
    for data in (DataLoader(Counting(), 4), DataLoader(NUMBERS, 4, sampler=sampler), iter([[torch.zeros(4)]])):
        with pytest.raises(WrongCommand, match=r"batch_size=2\).*the data comes in batches.*leave batch_size out"):
            seen(data, 2, batch_size=2)


class Buckets(BatchSampler):
    """Batches of similar length, say."""


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"batch_sampler": BatchSampler(RandomSampler(NUMBERS), 5, True)}, "a RandomSampler in its batch_sampler"),
        ({"batch_sampler": Buckets(SequentialSampler(NUMBERS), 5, True)}, "a Buckets"),
        ({"batch_size": None, "shuffle": True}, "a RandomSampler"),
    ],
    ids=["shuffled batches", "a class of one's own", "shuffled without batching"],
)
def test_batches_that_each_rank_would_shuffle_by_itself_are_refused(settings, complaint):
    with pytest.raises(WrongCommand, match=rf"with {complaint}: each rank would draw.*a DistributedSampler, or pass"):
        seen(DataLoader(NUMBERS, **settings), 2)


def test_batches_in_one_order_are_dealt_and_a_distributed_sampler_may_be_in_a_batch_sampler():
    ordered = DataLoader(NUMBERS, batch_sampler=BatchSampler(SequentialSampler(NUMBERS), 5, True))
    assert seen(ordered, 2)[1][0] == [5, 6, 7, 8, 9]
    sampler = BatchSampler(DistributedSampler(NUMBERS, 2, 1, shuffle=False), 5, True)
    assert seen(DataLoader(NUMBERS, batch_sampler=sampler), 2)[0][0] == [1, 3, 5, 7, 9]


def test_a_distributed_sampler_is_told_of_every_epoch():
    sampler = DistributedSampler(NUMBERS, 2, 0)
    loader = DataLoader(NUMBERS, 25, sampler=sampler)
    first, second = seen(loader, 1, epochs=range(2))[0]
    assert first != second
    assert seen(loader, 1, epochs=range(1)) == [[first]]
    assert seen(loader, 1, epochs=range(1, 2)) == [[second]]


def test_a_dataset_without_a_batch_size_is_an_error():
    with pytest.raises(WrongCommand, match="batch_size=32"):
        seen(NUMBERS, 2)

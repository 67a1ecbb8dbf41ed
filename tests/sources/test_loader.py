import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from paceline.errors import WrongCommand
from paceline.sources.loader import shares
from paceline.types import View

NUMBERS = TensorDataset(torch.arange(50))


def seen(data, size, *, batch_size=None, epochs=range(1), seed=0):
    """The samples of every rank, batch by batch."""
    return [
        [batch[0].tolist() for batch in shares(data, View(rank, size), batch_size=batch_size, epochs=epochs, seed=seed)]
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_sample_is_used_at_most_once_and_ranks_stay_level(size):
    ranks = seen(NUMBERS, size, batch_size=4)
    used = [number for batches in ranks for batch in batches for number in batch]
    assert len(used) == len(set(used)) == 50 // (4 * size) * 4 * size
    assert len({len(batches) for batches in ranks}) == 1


def test_one_sequence_whatever_the_number_of_workers():
    alone = seen(NUMBERS, 1, batch_size=12)[0]
    for size in (2, 3, 4):
        together = zip(*seen(NUMBERS, size, batch_size=12 // size), strict=True)
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
    assert kept[0][0].tolist() == [1, 3, 5, 7, 9]


def test_batches_of_any_iterable_are_dealt_in_rounds():
    batches = [[torch.tensor([k])] for k in range(7)]
    assert seen(iter_of(batches), 3) == [[[0], [3]], [[1], [4]], [[2], [5]]]


def iter_of(batches):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(batches)

    return DataLoader(Stream(), batch_size=None)


def test_a_dataset_without_a_batch_size_is_an_error():
    with pytest.raises(WrongCommand, match="batch_size=32"):
        seen(NUMBERS, 2)

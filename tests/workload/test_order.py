"""The order of samples in global batches."""

from itertools import islice

import pytest
import torch

from paceline.errors import WrongCommand
from paceline.types import Cursor, View
from paceline.workload.order import after, batches_per_epoch, ids_of, permutation, walk

SAMPLES, BATCH = 103, 10


def together(size, cursor):
    return torch.cat([ids_of(View(rank, size), BATCH, cursor, SAMPLES) for rank in range(size)])


@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_the_sequence_is_the_same_for_any_number_of_workers(size):
    for cursor in (Cursor(), Cursor(step=9), Cursor(epoch=4, step=3, seed=11)):
        assert torch.equal(together(size, cursor), together(1, cursor))


@pytest.mark.parametrize("size", [3, 4, 7])
def test_shares_differ_by_at_most_one(size):
    shares = [len(ids_of(View(rank, size), BATCH, Cursor(), SAMPLES)) for rank in range(size)]
    assert sum(shares) == BATCH
    assert max(shares) - min(shares) <= 1


def test_a_sample_is_used_at_most_once_per_epoch_and_the_ragged_end_is_left_out():
    epoch = torch.cat(list(islice(walk(View(0, 1), BATCH, Cursor(), SAMPLES), 10)))
    assert len(epoch) == len(set(epoch.tolist())) == 100
    assert set(epoch.tolist()) < set(range(SAMPLES))


def test_epochs_and_seeds_shuffle_differently():
    first = permutation(SAMPLES, seed=0, epoch=0)
    assert sorted(first.tolist()) == list(range(SAMPLES))
    assert torch.equal(first, permutation(SAMPLES, seed=0, epoch=0))
    assert not torch.equal(first, permutation(SAMPLES, seed=0, epoch=1))
    assert not torch.equal(first, permutation(SAMPLES, seed=1, epoch=0))
    assert len(permutation(SAMPLES, seed=-3, epoch=0)) == SAMPLES


@pytest.mark.parametrize("steps", [0, 1, 9, 10, 11, 35])
def test_a_walk_goes_on_across_epochs_and_resumes_anywhere(steps):
    view, start = View(1, 3), Cursor(epoch=2, step=8, seed=5)
    whole = list(islice(walk(view, BATCH, start, SAMPLES), steps + 4))
    resumed = walk(view, BATCH, after(start, steps, samples=SAMPLES, global_batch=BATCH), SAMPLES)
    assert all(torch.equal(a, b) for a, b in zip(whole[steps:], islice(resumed, 4), strict=True))


def test_a_walk_is_what_each_cursor_points_at():
    view = View(0, 2)
    for steps, ids in enumerate(islice(walk(view, BATCH, Cursor(), SAMPLES), 25)):
        cursor = after(Cursor(), steps, samples=SAMPLES, global_batch=BATCH)
        assert torch.equal(ids, ids_of(view, BATCH, cursor, SAMPLES))


def test_ordering_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    together(2, Cursor(seed=9))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_source_smaller_than_a_global_batch_is_refused():
    assert batches_per_epoch(10, 10) == 1
    with pytest.raises(WrongCommand, match="global batch 10: the source has only 9 samples"):
        batches_per_epoch(9, 10)
    with pytest.raises(WrongCommand, match="at least one sample"):
        batches_per_epoch(9, 0)


def test_a_worker_without_a_sample_is_refused():
    with pytest.raises(WrongCommand, match="global batch 3 among 4 workers: some worker would have no sample"):
        ids_of(View(0, 4), 3, Cursor(), SAMPLES)

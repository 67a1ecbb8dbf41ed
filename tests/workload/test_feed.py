"""Batches made ahead in a thread; a cursor that counts what was used."""

import functools
import operator
import threading

import pytest
import torch

from paceline.errors import WrongCommand
from paceline.types import View
from paceline.workload.feed import Feed
from paceline.workload.order import Laned, Permuted


def feeds(size, order, **settings):
    return [Feed(lambda ids: ids.clone(), order, View(rank, size), **settings) for rank in range(size)]


def used(size, order, steps, **settings):
    """The ids of every step, without stand-ins."""
    accumulate, found = settings.get("accumulate", 1), []
    ranks = feeds(size, order, **settings)
    for _ in range(steps):
        parts = {}
        for rank, feed in enumerate(ranks):
            for micro in range(accumulate):
                batch = next(feed)
                if feed.count:
                    assert set(batch[feed.count :].tolist()) <= set(batch.tolist())  # a lone sample comes twice
                    parts[micro * size + rank] = batch[: feed.count]
        found.append(torch.cat([parts[key] for key in sorted(parts)]).tolist())
    for feed in ranks:
        feed.close()
    return found


@pytest.mark.parametrize("order", [Permuted(23, 6), Laned((9, 3, 11), 6, lanes=3, window=4)], ids=str)
def test_the_sequence_is_one_for_any_number_of_workers_and_backward_passes(order):
    alone = used(1, order, 10)
    assert sorted(functools.reduce(operator.iadd, alone[:4], [])) == list(range(23))
    for size, accumulate in ((2, 1), (3, 1), (4, 1), (7, 1), (1, 3), (2, 2)):
        assert used(size, order, 10, accumulate=accumulate) == alone
        assert used(size, order, 10, accumulate=accumulate, ahead=0) == alone


def test_weights_are_the_shares_of_samples_and_add_up_to_one():
    order = Permuted(13, 10)
    ranks = feeds(4, order, ahead=0)
    for expected in ([2, 3, 2, 3], [0, 1, 1, 1]):
        batches = [next(feed) for feed in ranks]
        assert [feed.count for feed in ranks] == expected
        assert sum(feed.weight for feed in ranks) == pytest.approx(1.0)
        assert [feed.correction for feed in ranks] == [4 * n / sum(expected) for n in expected]
        assert all(len(batch) for batch in batches)  # a rank without samples has a stand-in


@pytest.mark.parametrize("taken", [0, 1, 3, 4, 5, 9])
def test_a_restored_feed_repeats_and_loses_nothing(taken):
    order = Permuted(23, 6, seed=5)
    whole, first = feeds(2, order), feeds(2, order)
    expected = [[next(feed).tolist() for _ in range(taken + 4)] for feed in whole]
    for _ in range(taken):
        for feed in first:
            next(feed)
    states = [feed.state() for feed in first]
    again = feeds(2, order)
    for feed, state, rows in zip(again, states, expected, strict=True):
        next(feed)
        feed.restore(state)
        assert [next(feed).tolist() for _ in range(4)] == rows[taken:]
    for feed in (*whole, *first, *again):
        feed.close()


def test_the_state_is_that_of_whole_updates():
    (feed,) = feeds(1, Permuted(20, 4), accumulate=2)
    next(feed)
    with pytest.raises(WrongCommand, match="middle of a global batch"):
        feed.state()
    next(feed)
    assert feed.state() == {"epoch": 0, "step": 1, "seed": 0}
    with pytest.raises(WrongCommand, match="seed 3"):
        feed.restore({"epoch": 0, "step": 1, "seed": 3})
    feed.close()


def test_a_feed_that_is_forgotten_ends_its_thread():
    before = threading.active_count()
    (feed,) = feeds(1, Permuted(20, 4))
    next(feed)
    assert threading.active_count() == before + 1
    del feed
    assert threading.active_count() == before


def test_an_error_of_the_thread_is_raised_where_the_batch_is_used():
    def samples(ids):
        raise ValueError("a bad sample")

    feed = Feed(samples, Permuted(20, 4), View(0, 1))
    for _ in range(2):
        with pytest.raises(ValueError, match="a bad sample"):
            next(feed)
    feed.close()


def test_a_constant_feed_makes_one_batch():
    made = []
    feed = Feed(lambda ids: made.append(ids) or ids, Permuted(20, 4), View(1, 2), constant=True)
    batches = [next(feed) for _ in range(12)]
    assert len(made) == 1
    assert all(batch is batches[0] for batch in batches)
    assert (feed.correction, feed.cursor.epoch, feed.cursor.step) == (1.0, 2, 2)


def test_a_lone_sample_of_a_short_batch_comes_twice_and_weighs_as_one():
    feed = Feed(lambda ids: ids.clone(), Permuted(13, 6), View(0, 1), accumulate=2, ahead=0)
    batches = [next(feed).tolist() for _ in range(6)]
    assert len(batches[5]) == 2
    assert len(set(batches[5])) == 1
    assert (feed.count, feed.total) == (1, 1)
    alone = Feed(lambda ids: ids.clone(), Permuted(3, 2), View(0, 2), ahead=0)
    assert len(next(alone)) == 1  # where one is what a rank always has

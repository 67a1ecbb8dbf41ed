"""Producers of a stream: together they go through the source as one producer does, epoch after epoch."""

from collections import Counter
from itertools import chain, islice

import pytest

from paceline.run.run import Run
from paceline.train.producer import batches_of

RUN = Run(model="mlp(hidden=4)", source="dataset(tests.workload.stream.test_ring:numbers)", seed=3)


def taken(parts, turns):
    """The ids of batches of several producers, taken in turn."""
    streams = [batches_of(RUN, 5, part, parts) for part in range(parts)]
    return [ids.tolist() for batches in islice(zip(*streams, strict=True), turns) for _, ids in batches]


@pytest.mark.parametrize("parts", [2, 3, 5, 7])
def test_any_number_of_producers_gives_the_batches_of_one(parts):
    """Eight batches in an epoch: three producers cannot share them evenly."""
    assert taken(parts, 8) == taken(1, 8 * parts)


@pytest.mark.parametrize("parts", [1, 3])
def test_every_sample_comes_once_in_an_epoch(parts):
    batches = taken(parts, 8)  # `parts` epochs
    for epoch in range(parts):
        assert set(Counter(chain(*batches[8 * epoch : 8 * (epoch + 1)])).values()) == {1}

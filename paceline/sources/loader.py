"""A rank's share of what a user hands over: a dataset, a DataLoader, or any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from paceline.errors import WrongCommand
from paceline.sources.order import batches_per_epoch, share, walk
from paceline.types import Cursor, View


def shares(data: Any, view: View, *, batch_size: int | None, epochs: range, seed: int) -> Iterator[Any]:
    """Batches of this rank, the same number on every rank."""
    from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
    from torch.utils.data.distributed import DistributedSampler

    if not isinstance(data, DataLoader):
        if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            return _dealt(data, view, epochs)
        if batch_size is None:
            raise WrongCommand("worker.batches(dataset)", why="its batch size is not known", remedy="batch_size=32")
        return _indexed(DataLoader(data, batch_size), batch_size, view, epochs, seed, shuffle=True)
    if isinstance(data.dataset, IterableDataset) or data.batch_size is None:
        return _dealt(data, view, epochs)
    if isinstance(data.sampler, DistributedSampler):
        return _sampled(data, epochs)
    if not isinstance(data.sampler, (RandomSampler, SequentialSampler)):
        raise WrongCommand(
            f"worker.batches(DataLoader) with a {type(data.sampler).__name__}",
            why="its choice of samples cannot be split among ranks",
            remedy="a DistributedSampler, or hand over the dataset itself",
        )
    shuffle = isinstance(data.sampler, RandomSampler)
    return _indexed(data, batch_size or data.batch_size, view, epochs, seed, shuffle)


def _indexed(loader: Any, batch_size: int, view: View, epochs: range, seed: int, shuffle: bool) -> Iterator[Any]:
    """Every sample at most once per epoch, in one order whatever the number of workers."""
    from torch.utils.data import DataLoader

    total, samples = batch_size * view.size, len(loader.dataset)
    for epoch in epochs:
        order = _order(view, total, samples, Cursor(epoch, 0, seed), shuffle)
        yield from DataLoader(
            loader.dataset,
            batch_sampler=order,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
        )


def _order(view: View, total: int, samples: int, cursor: Cursor, shuffle: bool) -> list[list[int]]:
    """The sample ids of this rank, batch by batch, for one epoch."""
    count = batches_per_epoch(samples, total)
    if shuffle:
        return [part.tolist() for part in islice(walk(view, total, cursor, samples), count)]
    start, stop = share(view, total)
    return [list(range(k * total + start, k * total + stop)) for k in range(count)]


def _dealt(data: Any, view: View, epochs: range) -> Iterator[Any]:
    """Batches of an iterable in rounds, one for each rank; an incomplete last round is left out."""
    for _ in epochs:
        batches = iter(data)
        while len(dealt := list(islice(batches, view.size))) == view.size:
            yield dealt[view.rank]


def _sampled(loader: Any, epochs: range) -> Iterator[Any]:
    """The user's own distributed sampler decides; its epoch is set only when there is more than one."""
    for epoch in epochs:
        if len(epochs) > 1:
            loader.sampler.set_epoch(epoch)
        yield from loader

"""A rank's share of what a user hands over: a dataset, a DataLoader, or any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from paceline.errors import WrongCommand
from paceline.sources.order import batches_per_epoch, walk
from paceline.types import Cursor, View


def shares(data: Any, view: View, *, batch_size: int | None, epochs: int, seed: int) -> Iterator[Any]:
    """Batches of this rank, the same number on every rank."""
    from torch.utils.data import DataLoader, IterableDataset
    from torch.utils.data.distributed import DistributedSampler

    if isinstance(data, DataLoader):
        if isinstance(data.sampler, DistributedSampler):
            return _epochs_of(data, epochs)
        if not isinstance(data.dataset, IterableDataset) and data.batch_size is not None:
            return _indexed(_like(data, batch_size), view, epochs, seed)
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        if batch_size is None:
            raise WrongCommand("worker.batches(dataset)", why="its batch size is not known", remedy="batch_size=32")
        return _indexed(DataLoader(data, batch_size), view, epochs, seed)
    return _dealt(data, view, epochs)


def _like(loader: Any, batch_size: int | None) -> Any:
    from torch.utils.data import DataLoader

    if batch_size is None or batch_size == loader.batch_size:
        return loader
    return DataLoader(loader.dataset, batch_size, num_workers=loader.num_workers, collate_fn=loader.collate_fn)


def _indexed(loader: Any, view: View, epochs: int, seed: int) -> Iterator[Any]:
    """Every sample at most once per epoch, in one order whatever the number of workers."""
    from torch.utils.data import DataLoader

    total, samples = loader.batch_size * view.size, len(loader.dataset)
    ids = walk(view, total, Cursor(seed=seed), samples)
    for _ in range(epochs):
        order = [part.tolist() for part in islice(ids, batches_per_epoch(samples, total))]
        yield from DataLoader(
            loader.dataset,
            batch_sampler=order,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
        )


def _dealt(data: Any, view: View, epochs: int) -> Iterator[Any]:
    """Batches of an iterable in rounds, one for each rank; an incomplete last round is left out."""
    for _ in range(epochs):
        batches = iter(data)
        while len(dealt := list(islice(batches, view.size))) == view.size:
            yield dealt[view.rank]


def _epochs_of(loader: Any, epochs: int) -> Iterator[Any]:
    """The user's own distributed sampler decides."""
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        yield from loader

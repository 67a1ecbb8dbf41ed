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
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, DataLoader):
        return _of_loader(data, view, batch_size, epochs, seed)
    if isinstance(data, IterableDataset) and batch_size is not None:
        return _dealt(DataLoader(data, batch_size, drop_last=True), view, epochs)
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        _check_size(batch_size, None)
        return _dealt(data, view, epochs)
    if batch_size is None:
        raise WrongCommand("worker.batches(dataset)", why="its batch size is not known", remedy="batch_size=32")
    return _indexed(DataLoader(data, batch_size), batch_size, view, epochs, seed, shuffle=True)


def _of_loader(loader: Any, view: View, batch_size: int | None, epochs: range, seed: int) -> Iterator[Any]:
    """Dealt batches are the same on every rank only if nothing shuffles them on each rank by itself."""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
    from torch.utils.data.distributed import DistributedSampler

    own = loader.batch_sampler if loader.batch_size is None else None  # made by the user
    sampler = own.sampler if type(own) is BatchSampler else loader.sampler if own is None else own
    splits = loader.batch_size is not None and not isinstance(loader.dataset, IterableDataset)
    if splits and isinstance(sampler, (RandomSampler, SequentialSampler)):
        shuffle = isinstance(sampler, RandomSampler)
        return _indexed(loader, batch_size or loader.batch_size, view, epochs, seed, shuffle)
    _check_size(batch_size, loader.batch_size)
    if isinstance(loader.dataset, IterableDataset) or isinstance(sampler, SequentialSampler):
        return _dealt(loader, view, epochs)
    if isinstance(sampler, DistributedSampler):
        return _sampled(loader, sampler, epochs)
    raise WrongCommand(
        f"worker.batches(DataLoader) with a {type(sampler).__name__}"
        + (" in its batch_sampler" if own is not None and own is not sampler else ""),
        why="its choice of samples is each rank's own and cannot be split among ranks",
        remedy="a DistributedSampler, or hand over the dataset itself; a loader that knows its rank needs no batches()",
    )


def _check_size(asked: int | None, own: int | None) -> None:
    if asked not in (None, own):
        raise WrongCommand(
            f"worker.batches(..., batch_size={asked})",
            why="the data comes in batches" + ("" if own is None else f" of {own}"),
            remedy="leave batch_size out, and set it where the batches are made",
        )


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


def told_epoch(data: Any) -> int | None:
    """The epoch that the DistributedSampler of a loader is set to, if it has one."""
    from torch.utils.data.distributed import DistributedSampler

    samplers = (getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None))
    return next((int(sampler.epoch) for sampler in samplers if isinstance(sampler, DistributedSampler)), None)


def _sampled(loader: Any, sampler: Any, epochs: range) -> Iterator[Any]:
    """The user's own distributed sampler decides, told of the epoch."""
    for epoch in epochs:
        sampler.set_epoch(epoch)
        yield from loader

"""Split a user's data among ranks: a dataset, a DataLoader, or any iterable of batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from paceline.errors import WrongCommand
from paceline.types import Cursor, View
from paceline.workload.order import batches_per_epoch, share, walk


def shares(data: Any, view: View, *, batch_size: int | None, epochs: range, seed: int) -> Iterator[Any]:
    """Yield the batches of this rank; every rank gets the same number."""
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
    """Split a DataLoader. A sampler that shuffles on each rank independently is refused."""
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
        why="each rank would draw its own samples, which cannot be split among ranks",
        remedy="a DistributedSampler, or pass the dataset itself; a loader that knows its rank needs no batches()",
    )


def _check_size(batch_size: int | None, own: int | None) -> None:
    if batch_size not in (None, own):
        raise WrongCommand(
            f"worker.batches(..., batch_size={batch_size})",
            why="the data comes in batches" + ("" if own is None else f" of {own}"),
            remedy="leave batch_size out, and set it where the batches are made",
        )


def _indexed(loader: Any, batch_size: int, view: View, epochs: range, seed: int, shuffle: bool) -> Iterator[Any]:
    """Yield batches by index: each sample at most once per epoch, in an order that ignores the number of workers."""
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
    """Return the sample ids of this rank, batch by batch, for one epoch."""
    count = batches_per_epoch(samples, total)
    if shuffle:
        return [part.tolist() for part in islice(walk(view, total, cursor, samples), count)]
    start, stop = share(view, total)
    return [list(range(k * total + start, k * total + stop)) for k in range(count)]


def _dealt(data: Any, view: View, epochs: range) -> Iterator[Any]:
    """Deal the batches of an iterable to ranks in turn; an incomplete last round is dropped."""
    for _ in epochs:
        batches = iter(data)
        while len(dealt := list(islice(batches, view.size))) == view.size:
            yield dealt[view.rank]


def sampler_epoch(data: Any) -> int | None:
    """Return the epoch that is set on the DistributedSampler of a loader, or None without one."""
    from torch.utils.data.distributed import DistributedSampler

    samplers = (getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None))
    return next((int(sampler.epoch) for sampler in samplers if isinstance(sampler, DistributedSampler)), None)


def _sampled(loader: Any, sampler: Any, epochs: range) -> Iterator[Any]:
    """Yield the loader's own batches, after setting the epoch on its DistributedSampler."""
    for epoch in epochs:
        sampler.set_epoch(epoch)
        yield from loader

"""Split a user's data among ranks: a dataset, a DataLoader, or any iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from paceline.errors import WrongCommand
from paceline.types import Cursor, View
from paceline.workload.feed import stand_in
from paceline.workload.order import Order, Permuted, after

Training = Callable[[], bool]  # returns whether the loop trains on the next batch


class Dealt(NamedTuple):
    """One batch of this rank, with `samples` of the `total` samples of all ranks; a total of 0 is not known.

    Zero samples of a known total mark a stand-in: the rank takes part in the step, and its gradient has no weight.
    `cursor` is the position of the next batch.
    """

    batch: Any
    samples: int
    total: int
    cursor: Cursor


def shares(
    data: Any,
    view: View,
    *,
    batch_size: int | None,
    epochs: range,
    seed: int,
    start: int = 0,
    drop_last: bool = False,
    training: Training = lambda: True,
) -> Iterator[Dealt]:
    """Yield the batches of this rank, from step `start` of the first epoch on.

    In training, all ranks get the same number.
    """
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(data, DataLoader):
        return _of_loader(data, view, batch_size, epochs, seed, start, drop_last, training)
    if isinstance(data, IterableDataset) and batch_size is not None:
        return _dealt(DataLoader(data, batch_size, drop_last=drop_last), view, epochs, start, training)
    if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        _check_size(batch_size, None)
        return _dealt(data, view, epochs, start, training)
    if batch_size is None:
        raise WrongCommand("worker.batches(dataset)", why="its batch size is not known", remedy="batch_size=32")
    order = _ordered(data, batch_size * view.size, seed, True, drop_last)
    return _indexed(DataLoader(data, batch_size), order, view, epochs, start, training)


def _ordered(dataset: Any, total: int, seed: int, shuffle: bool, drop_last: bool) -> Permuted:
    order = Permuted(len(dataset), total, seed, shuffle, drop_last)
    _ = order.steps  # raises before the first batch if there are too few samples
    return order


def _of_loader(
    loader: Any,
    view: View,
    batch_size: int | None,
    epochs: range,
    seed: int,
    start: int,
    drop_last: bool,
    training: Training,
) -> Iterator[Dealt]:
    """Split a DataLoader. A sampler that shuffles on each rank independently is refused."""
    from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
    from torch.utils.data.distributed import DistributedSampler

    own = loader.batch_sampler if loader.batch_size is None else None  # a sampler of the user
    sampler = own.sampler if type(own) is BatchSampler else loader.sampler if own is None else own
    splits = loader.batch_size is not None and not isinstance(loader.dataset, IterableDataset)
    if splits and isinstance(sampler, (RandomSampler, SequentialSampler)):
        shuffle, total = isinstance(sampler, RandomSampler), (batch_size or loader.batch_size) * view.size
        order = _ordered(loader.dataset, total, seed, shuffle, drop_last or loader.drop_last)
        return _indexed(loader, order, view, epochs, start, training)
    _check_size(batch_size, loader.batch_size)
    if isinstance(loader.dataset, IterableDataset) or isinstance(sampler, SequentialSampler):
        return _dealt(loader, view, epochs, start, training)
    if isinstance(sampler, DistributedSampler):
        return _sampled(loader, sampler, epochs, start)
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


def _indexed(
    loader: Any, order: Permuted, view: View, epochs: range, start: int, training: Training
) -> Iterator[Dealt]:
    """Yield batches by index: each sample once per epoch, in an order that ignores the number of workers."""
    from torch.utils.data import DataLoader

    for epoch in epochs:
        ids = PartOfOrder(order, view, epoch, start)
        batches = DataLoader(
            loader.dataset,
            batch_sampler=ids,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator if loader.generator is not None else _generator(order.seed, epoch),
            prefetch_factor=loader.prefetch_factor,
        )
        for step, batch in enumerate(batches, start):
            dealt = Dealt(batch, *ids.shares(step), _following(order, epoch, step))
            if dealt.samples or training():
                yield dealt
        start = 0


def _generator(seed: int, epoch: int) -> Any:
    """Return the generator that seeds the processes of a loader.

    By default a DataLoader takes this seed from torch's global generator when an epoch begins. A run that resumes
    inside an epoch would take one number more than a run without a stop.
    """
    import torch

    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + epoch) % 2**63)


def _following(order: Permuted, epoch: int, step: int) -> Cursor:
    return after(order, Cursor(epoch, step, order.seed), 1)


class PartOfOrder:
    """This rank's part of every global batch of one epoch, as a batch_sampler of torch. Ids are computed when needed.

    If a part of the last, short batch is empty, it gets ids of another rank as a stand-in, so that all ranks make the
    same number of steps.
    """

    def __init__(self, order: Order, view: View, epoch: int, start: int = 0) -> None:
        self._order, self._view, self._epoch, self._start = order, view, epoch, start

    def __len__(self) -> int:
        return self._order.steps - self._start

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self._start, self._order.steps):
            ids = self._order.ids(self._epoch, step, self._view.rank, self._view.size)
            if not len(ids):
                ids = stand_in(self._order, Cursor(self._epoch, step), self._view.size)
            yield ids.tolist()

    def shares(self, step: int) -> tuple[int, int]:
        """Return the number of samples of this rank at a step, and of all ranks."""
        own = self._order.ids(self._epoch, step, self._view.rank, self._view.size)
        first = step * self._order.global_batch
        return len(own), min(self._order.global_batch, self._order.samples - first)


def _dealt(data: Any, view: View, epochs: range, start: int, training: Training) -> Iterator[Dealt]:
    """Deal the batches of an iterable to ranks in turn. In an incomplete last round some ranks get a stand-in."""
    for epoch in epochs:
        batches = islice(iter(data), start * view.size, None)
        step, start = start, 0
        while round_ := list(islice(batches, view.size)):
            counts = [count(batch) for batch in round_]
            total, own = sum(counts) if all(counts) else 0, view.rank < len(round_)
            step += 1
            following = Cursor(epoch, step)
            if own:
                yield Dealt(round_[view.rank], counts[view.rank], total, following)
            elif training():
                yield Dealt(round_[0], 0, total or 1, following)


def count(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor; 0 if it has none."""
    import torch

    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return next((count(part) for part in parts), 0)


def sampler_epoch(data: Any) -> int | None:
    """Return the epoch that is set on the DistributedSampler of a loader, or None without one."""
    from torch.utils.data.distributed import DistributedSampler

    samplers = (getattr(data, "sampler", None), getattr(getattr(data, "batch_sampler", None), "sampler", None))
    return next((int(sampler.epoch) for sampler in samplers if isinstance(sampler, DistributedSampler)), None)


def _sampled(loader: Any, sampler: Any, epochs: range, start: int) -> Iterator[Dealt]:
    """Yield the loader's own batches, after setting the epoch on its DistributedSampler.

    The batches of other ranks are not known.
    """
    for epoch in epochs:
        sampler.set_epoch(epoch)
        for step, batch in enumerate(islice(iter(loader), start, None), start + 1):
            yield Dealt(batch, count(batch), 0, Cursor(epoch, step))
        start = 0

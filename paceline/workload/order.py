"""The order of samples in global batches: one sequence per seed, independent of the number of workers.

    epoch e     permutation(seed, e) = | batch 0 | batch 1 | ... | ragged end, left out |
    one batch                          | rank 0 | rank 1 | ... |   shares differ by at most one

A sample is used at most once per epoch. The ragged end of an epoch (fewer samples than a global batch) is
left out; each epoch leaves out different samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.errors import WrongCommand
from paceline.types import Cursor, View, spread

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15


def batches_per_epoch(samples: int, global_batch: int) -> int:
    """Return the number of whole global batches in an epoch. Raises if the source is smaller than one."""
    if global_batch < 1:
        raise WrongCommand(f"global batch {global_batch}", why="a global batch has at least one sample")
    if samples < global_batch:
        raise WrongCommand(
            f"global batch {global_batch}",
            why=f"the source has only {samples} samples",
            remedy=f"a global batch of at most {samples}, or more samples",
        )
    return samples // global_batch


def permutation(samples: int, *, seed: int, epoch: int) -> Tensor:
    """Return all sample ids in the order of one epoch, drawn from a separate generator."""
    import torch

    generator = torch.Generator().manual_seed((seed * _GOLDEN + epoch) % 2**63)
    return torch.randperm(samples, generator=generator)


def share(view: View, global_batch: int) -> tuple[int, int]:
    """Return the range of a global batch that belongs to this rank."""
    if global_batch < view.size:
        raise WrongCommand(
            f"global batch {global_batch} among {view.size} workers",
            why="some worker would have no sample",
            remedy=f"a global batch of at least {view.size}",
        )
    bounds = spread(global_batch, view.size)
    return bounds[view.rank], bounds[view.rank + 1]


def after(cursor: Cursor, steps: int, *, samples: int, global_batch: int) -> Cursor:
    """Return the cursor `steps` global batches later, across epochs if needed."""
    per_epoch = batches_per_epoch(samples, global_batch)
    epochs, step = divmod(cursor.step + steps, per_epoch)
    return Cursor(cursor.epoch + epochs, step, cursor.seed)


def ids_of(view: View, global_batch: int, cursor: Cursor, samples: int) -> Tensor:
    """Return this rank's contiguous share of the global batch at the cursor."""
    return next(walk(view, global_batch, cursor, samples))


def walk(view: View, global_batch: int, cursor: Cursor, samples: int) -> Iterator[Tensor]:
    """Yield this rank's shares from the cursor on, epoch after epoch, without end."""
    per_epoch = batches_per_epoch(samples, global_batch)
    start, stop = share(view, global_batch)
    cursor = after(cursor, 0, samples=samples, global_batch=global_batch)
    while True:
        order = permutation(samples, seed=cursor.seed, epoch=cursor.epoch)
        for step in range(cursor.step, per_epoch):
            first = step * global_batch
            yield order[first + start : first + stop]
        cursor = Cursor(cursor.epoch + 1, 0, cursor.seed)

"""The order of samples: the ids of each global batch of an epoch, and the part of each worker.

    epoch     | batch 0 | batch 1 | ... | batch k-1 | the last one may be short |        every sample once
    batch     | part 0 | part 1 | ... |                                                  one part per worker

An order is a pure function of its settings. The sequence depends on seed and global batch, not on the number of
workers.

    Permuted(samples)                  every epoch is a new permutation of all ids
    Laned(shards, lanes, window)       shards are permuted and dealt to lanes; in a lane, ids move by less than a window
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

from paceline.errors import WrongCommand
from paceline.types import Cursor, spread

if TYPE_CHECKING:
    from torch import Generator, Tensor

_GOLDEN = 0x9E3779B97F4A7C15


class Order(Protocol):
    """Assigns samples to the global batches of an epoch."""

    @property
    def samples(self) -> int:
        """Samples in an epoch."""

    @property
    def global_batch(self) -> int:
        """Samples in every global batch but the last one of an epoch, which may be short."""

    @property
    def seed(self) -> int: ...

    @property
    def steps(self) -> int:
        """Global batches in an epoch, the short one included."""

    def ids(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> Tensor:
        """The ids of one part of a global batch; a part of a short one may be empty."""


def steps_in(samples: int, global_batch: int) -> int:
    """Return the number of global batches in an epoch, rounded up. Raises if the source is smaller than one."""
    if global_batch < 1:
        raise WrongCommand(f"global batch {global_batch}", why="a global batch has at least one sample")
    if samples < global_batch:
        raise WrongCommand(
            f"global batch {global_batch}",
            why=f"the source has only {samples} samples",
            remedy=f"a global batch of at most {samples}, or more samples",
        )
    return -(-samples // global_batch)


def permutation(samples: int, *, seed: int, epoch: int) -> Tensor:
    """Return all sample ids in the order of one epoch, drawn from a separate generator."""
    import torch

    return torch.randperm(samples, generator=_generator(seed, epoch))


def _generator(seed: int, epoch: int, lane: int = 0) -> Generator:
    import torch

    return torch.Generator().manual_seed((seed * _GOLDEN + epoch + lane * 0xD1342543DE82EF95) % 2**63)


def after(order: Order, cursor: Cursor, steps: int) -> Cursor:
    """Return the cursor `steps` global batches later, across epochs if needed."""
    epochs, step = divmod(cursor.step + steps, order.steps)
    return Cursor(cursor.epoch + epochs, step, cursor.seed)


@dataclass(frozen=True)
class Permuted:
    """A new permutation of all samples in every epoch. Without `shuffle`, ids are in ascending order.

    With `drop_last`, the short last batch is omitted; every epoch omits different samples.
    """

    samples: int
    global_batch: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    _kept: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def steps(self) -> int:
        steps = steps_in(self.samples, self.global_batch)
        return self.samples // self.global_batch if self.drop_last else steps

    def ids(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> Tensor:
        first = self._check(step) * self.global_batch
        bounds = spread(min(self.global_batch, self.samples - first), parts)
        return self._sequence(epoch)[first + bounds[part] : first + bounds[part + 1]]

    def _check(self, step: int) -> int:
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch with {self.steps} steps")
        return step

    def _sequence(self, epoch: int) -> Tensor:
        """Return the permutation of an epoch; the last one is kept."""
        if not self.shuffle:
            import torch

            return torch.arange(self.samples)
        kept = self._kept.get(epoch)
        if kept is None:
            kept = permutation(self.samples, seed=self.seed, epoch=epoch)
            self._kept.clear()
            self._kept[epoch] = kept
        return kept


@dataclass(frozen=True)
class Laned:
    """Samples of files that are read from front to back, several at a time.

    `shards` holds the number of samples in each file; ids count through the files in their order. In every epoch the
    files are permuted, and lane v reads files v, v + lanes, ... of them. Inside a lane every sample moves by less than
    `window` places. Each global batch takes an equal share from every lane; the share of an empty lane is taken from
    the other lanes, in their order. A part of a batch is made of whole lanes, so that a file has one reader; with more
    parts than lanes, the batch is cut evenly instead.
    """

    shards: tuple[int, ...]
    global_batch: int
    lanes: int = 8
    window: int = 1024
    seed: int = 0
    _kept: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.window < 1:
            raise WrongCommand(f"lanes={self.lanes}, window={self.window}", why="both are at least 1")

    @cached_property
    def samples(self) -> int:
        return sum(self.shards)

    @cached_property
    def steps(self) -> int:
        return steps_in(self.samples, self.global_batch)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first id of every file, and the number of all samples."""
        return (0, *accumulate(self.shards))

    def ids(self, epoch: int, step: int, part: int = 0, parts: int = 1) -> Tensor:
        import torch

        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of an epoch with {self.steps} steps")
        sequences, taken = self._epoch(epoch)
        if parts > self.lanes:
            whole = self.ids(epoch, step)
            bounds = spread(len(whole), parts)
            return whole[bounds[part] : bounds[part + 1]]
        bounds = spread(self.lanes, parts)
        pieces = [
            sequences[lane][taken[step][lane] : taken[step + 1][lane]] for lane in range(bounds[part], bounds[part + 1])
        ]
        return torch.cat(pieces)

    def _epoch(self, epoch: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the sequence of every lane, and how much of each was taken before every step."""
        kept = self._kept.get(epoch)
        if kept is None:
            sequences = self._sequences(epoch)
            kept = sequences, self._cuts([len(ids) for ids in sequences])
            self._kept.clear()
            self._kept[epoch] = kept
        return kept

    def _sequences(self, epoch: int) -> list[Tensor]:
        import torch

        order = permutation(len(self.shards), seed=self.seed, epoch=epoch).tolist()
        nothing = torch.empty(0, dtype=torch.int64)
        sequences = []
        for lane in range(self.lanes):
            files = [torch.arange(self.offsets[k], self.offsets[k + 1]) for k in order[lane :: self.lanes]]
            sequences.append(self._shuffled(torch.cat([nothing, *files]), epoch, lane))
        return sequences

    def _shuffled(self, ids: Tensor, epoch: int, lane: int) -> Tensor:
        """Sort by position plus a random number below the window: no sample moves further than that."""
        import torch

        noise = torch.rand(len(ids), generator=_generator(self.seed, epoch, lane + 1), dtype=torch.float64)
        return ids[torch.argsort(torch.arange(len(ids)) + noise * self.window, stable=True)]

    def _cuts(self, lengths: Sequence[int]) -> list[list[int]]:
        bounds = spread(self.global_batch, self.lanes)
        quotas = [stop - start for start, stop in pairwise(bounds)]
        cuts, left = [[0] * self.lanes], list(lengths)
        for _ in range(self.steps):
            taken = [min(quota, rest) for quota, rest in zip(quotas, left, strict=True)]
            lacking = self.global_batch - sum(taken)
            for lane in range(self.lanes if lacking else 0):
                more = min(lacking, left[lane] - taken[lane])
                taken[lane] += more
                lacking -= more
            left = [rest - count for rest, count in zip(left, taken, strict=True)]
            cuts.append([length - rest for length, rest in zip(lengths, left, strict=True)])
        return cuts

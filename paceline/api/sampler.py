"""A batch sampler for a user's own DataLoader. The ranks together use each sample once per epoch.

    loader = DataLoader(dataset, batch_sampler=paceline.sampler(dataset, batch_size=16), num_workers=4)

A DataLoader fetches batches ahead of training. Therefore the current batch is computed from the number of updates of
the wrapped model: every update uses the next `accumulate` batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

from paceline.api.join import Worker, current
from paceline.errors import WrongCommand
from paceline.types import Cursor, View
from paceline.workload.loader import PartOfOrder
from paceline.workload.order import Permuted, after


class Sampler:
    """A batch_sampler of torch for one rank. Every `iter` is a new epoch, unless `set_epoch` was called."""

    def __init__(self, worker: Worker, order: Permuted) -> None:
        self._worker, self.order = worker, order
        self._view = View(worker.rank, worker.size)
        self._next: Cursor | None = Cursor(0, 0, order.seed)  # where the next `iter` begins, if it is set
        self._began = Cursor(0, 0, order.seed)
        self._before: dict[int, int] = {}  # updates of every wrapped model when the epoch began

    def __len__(self) -> int:
        return self.order.steps - (self._next.step if self._next else 0)

    def __iter__(self) -> Iterator[list[int]]:
        start = self._next or Cursor(self._began.epoch + 1, 0, self.order.seed)
        self._next, self._began = None, start
        self._before = self._worker.updates()
        self._worker.use_shares(self.share)
        return iter(PartOfOrder(self.order, self._view, start.epoch, start.step))

    def set_epoch(self, epoch: int) -> None:
        """Let the next `iter` start at the beginning of this epoch."""
        self._next = Cursor(epoch, 0, self.order.seed)

    def share(self, pace: Any) -> float | None:
        """Return this rank's fraction of the samples in the next update; None means equal fractions."""
        part = PartOfOrder(self.order, self._view, self._began.epoch)
        first = self._began.step + self._trained(pace)
        shares = [part.shares(step) for step in range(first, min(first + pace.accumulate, self.order.steps))]
        return sum(own / total for own, total in shares) / len(shares) if shares else None

    def _trained(self, pace: Any) -> int:
        """Return the number of batches that the loop has trained on since the epoch began."""
        return int((pace.steps - self._before.get(id(pace), 0)) * pace.accumulate)

    def state_dict(self) -> dict[str, int]:
        """Return the position of the next batch to train on. Batches that a loader has only fetched do not count."""
        cursor = self._next or after(self.order, self._began, max(map(self._trained, self._worker.paces), default=0))
        return {"epoch": cursor.epoch, "step": cursor.step, "seed": self.order.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next `iter` start at a saved position, which may be in the middle of an epoch."""
        if state["seed"] != self.order.seed:
            raise WrongCommand(
                f"load_state_dict of seed {state['seed']}",
                why=f"this sampler has seed {self.order.seed}, which is another order",
                remedy=f"sampler(..., seed={state['seed']})",
            )
        self._next = Cursor(state["epoch"], state["step"], state["seed"])


def sampler(
    dataset: Sized, batch_size: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = False
) -> Sampler:
    """Return a batch_sampler for `DataLoader(dataset, batch_sampler=...)` on this rank, for training.

    `batch_size` is per worker. Every sample is used once per epoch by one rank, in a sequence that depends only on the
    seed and the global batch. The last batch of an epoch may be short; its samples weigh as much as all others, and a
    rank without a sample gets a stand-in whose gradient has no weight. Train on every batch: an update takes the next
    one (with `accumulate=k`, the next k).
    """
    worker = current()
    if worker.elastic:
        raise WrongCommand("sampler() in an elastic job", why="its ranks change", remedy="worker.batches(dataset)")
    order = Permuted(len(dataset), batch_size * worker.size, seed, shuffle, drop_last)
    _ = order.steps  # raises now if there are too few samples
    return Sampler(worker, order)

"""Feed: the batches of one rank, made ahead of time in a thread, in the order of the run.

    order -> ids of this rank's part -> samples(ids) -> place on the device -> next(feed)
             `--------------- a thread, a few batches ahead ---------------'

The cursor points at the next batch that `next` yields, and not at the batches that the thread has already made. So a
feed that is restored from `state()` repeats no sample and loses none.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from paceline.errors import WrongCommand
from paceline.types import Cursor, View
from paceline.workload.order import Order, after

AHEAD = 2  # batches
EXPECTED = 16  # global batches whose samples are announced in advance


class Portion(NamedTuple):
    """One rank's part of a global batch, with `samples` of its `total` samples.

    If `samples` is 0, the batch is a stand-in with samples of another rank, whose gradient must not count.
    """

    batch: Any
    samples: int
    total: int
    cursor: Cursor  # the position of the next portion
    micro: int
    ids: Any = None  # of the samples in the batch


@runtime_checkable
class Augmented(Protocol):
    """Samples that differ from epoch to epoch."""

    def at(self, seed: int, epoch: int) -> Any:
        """Set the epoch of the samples that are made from now on."""


@runtime_checkable
class Expecting(Protocol):
    """Samples that can be fetched (from a file or store) before a batch is made of them."""

    def expect(self, ids: Any) -> None:
        """Start to fetch samples that are needed soon."""


class Feed:
    """An endless iterator over this rank's batches, epoch after epoch.

    `accumulate` backward passes share one global batch: pass a of rank r gets part a x size + r of it.
    """

    def __init__(
        self,
        samples: Callable[[Any], Any],
        order: Order,
        view: View,
        *,
        accumulate: int = 1,
        cursor: Cursor | None = None,
        place: Callable[[Any], Any] = lambda batch: batch,
        ahead: int = AHEAD,
        constant: bool = False,
    ) -> None:
        self.order, self._samples, self._view, self._accumulate = order, samples, view, accumulate
        self._place, self._ahead, self._constant = place, ahead, constant
        self.cursor, self.micro = cursor or Cursor(seed=order.seed), 0
        self.count = self.total = 0
        self.ids: Any = None  # of the samples in the last batch
        self._portions: Iterator[Portion] | None = None
        self._stop: Callable[[], None] = _nothing

    @property
    def parts(self) -> int:
        """Parts of a global batch: one for each backward pass of each rank."""
        return self._view.size * self._accumulate

    @property
    def weight(self) -> float:
        """The fraction of the global batch's samples that are in the last batch."""
        return self.count / self.total if self.total else 1.0 / self.parts

    @property
    def correction(self) -> float:
        """The factor for the mean loss of the last batch, so that every sample has the same weight.

        It is exactly 1 if all parts have the same number of samples.
        """
        return self.count * self.parts / self.total if self.total else 1.0

    def __iter__(self) -> Feed:
        return self

    def __next__(self) -> Any:
        if self._portions is None:
            self._portions = self._start()
        portion = next(self._portions)
        self.count, self.total, self.cursor, self.micro = portion.samples, portion.total, portion.cursor, portion.micro
        self.ids = portion.ids
        return portion.batch

    def state(self) -> dict[str, int]:
        """Return the position of the next global batch.

        Call it between updates, when all parts of the last batch are used.
        """
        if self.micro:
            raise WrongCommand(
                "the state of a feed", why="it is in the middle of a global batch", remedy="step() first"
            )
        return {"epoch": self.cursor.epoch, "step": self.cursor.step, "seed": self.cursor.seed}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a saved state. Batches that were yielded before do not matter."""
        if state["seed"] != self.order.seed:
            raise WrongCommand(f"a feed of seed {state['seed']}", why=f"this run has seed {self.order.seed}")
        self.close()
        self.cursor, self.micro = after(self.order, Cursor(**state), 0), 0
        self.count = self.total = 0

    def close(self) -> None:
        """End the thread. The next batch starts another one, from the cursor."""
        self._stop()
        self._portions, self._stop = None, _nothing

    def _start(self) -> Iterator[Portion]:
        portions = _portions(
            self._samples, self.order, self._view, self._accumulate, self.cursor, self._place, self._constant
        )
        if self._constant or not self._ahead:
            return portions
        line = _Line(portions, self._ahead)
        self._stop = weakref.finalize(self, line.stop)
        return line


def _nothing() -> None:
    """Do nothing: there is no thread to stop."""


def _portions(
    samples: Callable[[Any], Any],
    order: Order,
    view: View,
    accumulate: int,
    cursor: Cursor,
    place: Callable[[Any], Any],
    constant: bool,
) -> Iterator[Portion]:
    """Yield portions without end. A constant feed makes one batch, the first of the first epoch."""
    always = order.ids(0, 0, view.rank, view.size * accumulate)
    first = place(samples(always)) if constant else None
    augmented = samples if isinstance(samples, Augmented) else None
    announce = _announcer(samples, order, view, accumulate)
    while True:
        announce(cursor)
        if augmented is not None:
            augmented.at(order.seed, cursor.epoch)
        total = min(order.global_batch, order.samples - cursor.step * order.global_batch)
        following = after(order, cursor, 1)
        for micro in range(accumulate):
            then = (cursor, micro + 1) if micro + 1 < accumulate else (following, 0)
            if constant:
                yield Portion(first, len(always), order.global_batch, *then, always)
                continue
            ids = order.ids(cursor.epoch, cursor.step, micro * view.size + view.rank, view.size * accumulate)
            used = _trainable(ids, order, cursor, view.size * accumulate)
            yield Portion(place(samples(used)), len(ids), total, *then, used)
        cursor = following


def _announcer(samples: Any, order: Order, view: View, accumulate: int) -> Callable[[Cursor], None]:
    """Return a function that announces every sample of the epoch once, before it is needed."""
    if not isinstance(samples, Expecting):
        return lambda cursor: None
    done = (-1, 0)  # the epoch, and the first of its steps that is not announced yet

    def announce(cursor: Cursor) -> None:
        nonlocal done
        first = max(done[1], cursor.step) if done[0] == cursor.epoch else cursor.step
        done = cursor.epoch, min(order.steps, cursor.step + EXPECTED)
        for step in range(first, done[1]):
            for micro in range(accumulate):
                part = micro * view.size + view.rank
                samples.expect(order.ids(cursor.epoch, step, part, view.size * accumulate))

    return announce


def _trainable(ids: Any, order: Order, cursor: Cursor, parts: int) -> Any:
    """Return the ids to compute: a stand-in if there are none, and a single sample twice, because of BatchNorm.

    The mean loss over two copies of a sample is its loss, so it still has the weight of one sample.
    """
    if not len(ids):
        return stand_in(order, cursor, parts)
    return ids.repeat(2) if len(ids) == 1 < order.global_batch // parts else ids


def stand_in(order: Order, cursor: Cursor, parts: int) -> Any:
    """Return ids for a rank that gets no sample of a short global batch: the first ids of the batch, as many as usual.

    There are several, because BatchNorm cannot train on a single sample. Their gradient has the weight zero.
    """
    return order.ids(cursor.epoch, cursor.step)[: max(1, order.global_batch // parts)]


class _Line:
    """A thread that makes portions ahead of their use; it ends when `stop` is called, also by garbage collection."""

    def __init__(self, portions: Iterator[Portion], ahead: int) -> None:
        self._made: queue.Queue[Any] = queue.Queue(ahead)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=_fill, args=(portions, self._made, self._ended), daemon=True)
        self._thread.name = "paceline feed"
        self._thread.start()

    def __iter__(self) -> _Line:
        return self

    def __next__(self) -> Portion:
        made = self._made.get()
        if isinstance(made, BaseException):
            self._made.put(made)  # raised again at the next call
            raise made
        portion: Portion = made
        return portion

    def stop(self) -> None:
        self._ended.set()
        while True:  # the thread may wait for a place in the queue
            try:
                self._made.get_nowait()
            except queue.Empty:
                break
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)


def _fill(portions: Iterator[Portion], made: queue.Queue[Any], ended: threading.Event) -> None:
    try:
        for portion in portions:
            if not _put(portion, made, ended):
                return
    except BaseException as problem:  # raised when the batch is requested
        _put(problem, made, ended)


def _put(item: Any, made: queue.Queue[Any], ended: threading.Event) -> bool:
    while not ended.is_set():
        try:
            made.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False

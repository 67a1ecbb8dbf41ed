"""One-sided windows in shared memory: a writer copies into the target's memory, and the target does nothing.

    segment of rank 2   | line, own | line, from 0 | line, from 1 | line |
                          ^ others may get it                       ^ the mutex that users see
                                      ^ written by rank 0 alone, read and cleared by rank 2

Every buffer has one lock. Each read or write of the buffer holds this lock from beginning to end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from paceline.comm.shm.mutex import DEPOSITS, FILLED, FRESH, LINE, Lock
from paceline.comm.shm.space import SharedSpace, typed
from paceline.comm.transport import Work


class Done(Work):
    """A work that was finished when it was created."""

    def wait(self, deadline: float | None = None) -> None:
        pass

    def done(self) -> bool:
        return True


class LockedVector:
    """A vector behind a lock, with a count of its writes."""

    def __init__(self, lock: Lock, data: Tensor, what: str) -> None:
        self._lock, self._data, self._what = lock, data, what

    def put(self, tensor: Tensor, weight: float, *, deposit: bool) -> None:
        with self._lock.held(self._what) as numbers:
            torch.mul(tensor, weight, out=self._data)
            _written(numbers, deposit)

    def accumulate(self, tensor: Tensor, weight: float) -> None:
        with self._lock.held(self._what) as numbers:
            if numbers[FILLED]:
                self._data.add_(tensor, alpha=weight)
            else:  # nothing was written since the last clear
                torch.mul(tensor, weight, out=self._data)
            _written(numbers, deposit=True)

    def read(self, into: Tensor) -> None:
        with self._lock.held(self._what):
            into.copy_(self._data)

    def fold(self, into: Tensor, weight: float, clear: bool) -> bool:
        """Add weight * the vector to `into` if it was written since it was last cleared. Return whether it was."""
        with self._lock.held(self._what) as numbers:
            filled = bool(numbers[FILLED])
            if filled:
                into.add_(self._data, alpha=weight)
            numbers[FRESH] = 0
            if filled and clear:
                numbers[FILLED] = 0
        return filled

    def fresh(self) -> int:
        return int(self._lock.numbers[FRESH])

    def deposited(self) -> int:
        """Return the number of bytes that the source of this buffer has written so far."""
        return int(self._lock.numbers[DEPOSITS]) * self._data.nbytes


def _written(numbers, deposit: bool) -> None:  # type: ignore[no-untyped-def]
    numbers[FRESH] += 1
    numbers[FILLED] = 1
    numbers[DEPOSITS] += deposit


class SharedBuffers:
    """This rank's view of one window. Creating it is collective. Afterwards ranks only wait for locks."""

    def __init__(
        self, space: SharedSpace, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]], shows: bool
    ) -> None:
        self._space, self._rank, self._numel, self._dtype = space, space.rank, numel, dtype
        self.sources = tuple(sources[space.rank])
        self.targets = tuple(rank for rank in range(space.size) if space.rank in sources[rank])
        writers = [(*(("own",) if shows else ()), *sources[rank]) for rank in range(space.size)]
        room = LINE + numel * dtype.itemsize
        room += -room % LINE
        segments = space.map_all(LINE + room * max(map(len, writers)))
        # Line 0 of a segment is its owner's mutex, then come the buffers. A rank creates its own before the barrier.
        self._mutexes = [space.lock(raw[:LINE], owner == self._rank) for owner, raw in enumerate(segments)]
        self._buffers: dict[tuple[int, int | str], LockedVector] = {}
        for owner, names in enumerate(writers):
            for place, name in enumerate(names):
                if self._rank in (owner, name) or (name == "own" and owner in self.sources):
                    raw = segments[owner][LINE + room * place :]
                    self._buffers[owner, name] = self._open(raw, owner, name)
        space.windows.append(self)
        space.barrier()

    def _open(self, raw: Tensor, owner: int, name: int | str) -> LockedVector:
        what = f"the window of rank {owner}" if name == "own" else f"rank {owner}'s buffer for rank {name}"
        lock = self._space.lock(raw[:LINE], owner == self._rank)
        return LockedVector(lock, typed(raw[LINE:], self._numel, self._dtype), what)

    def empty(self) -> Tensor:
        return torch.zeros(self._numel, dtype=self._dtype)

    def show(self, tensor: Tensor) -> None:
        self._buffers[self._rank, "own"].put(tensor, 1.0, deposit=False)

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> Done:
        self._buffers[target, self._rank].put(tensor, weight, deposit=True)
        return Done()

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> Done:
        self._buffers[target, self._rank].accumulate(tensor, weight)
        return Done()

    def get(self, source: int, weight: float = 1.0) -> Done:
        copy = self.empty()
        self._buffers[source, "own"].read(copy)
        self._space.received[source] += copy.nbytes
        self._buffers[self._rank, source].put(copy, weight, deposit=False)
        return Done()

    def fold(self, source: int, into: Tensor, weight: float = 1.0, *, clear: bool = False) -> bool:
        return self._buffers[self._rank, source].fold(into, weight, clear)

    def versions(self) -> dict[int, int]:
        return {source: self._buffers[self._rank, source].fresh() for source in self.sources}

    @contextlib.contextmanager
    def mutex(self, rank: int, deadline: float | None = None) -> Iterator[None]:
        with self._mutexes[rank].held(f"the mutex of rank {rank}", deadline):
            yield

    def deposited(self, source: int) -> int:
        """Return the number of bytes that `source` has written into this rank's memory."""
        buffer = self._buffers.get((self._rank, source))
        return 0 if buffer is None else buffer.deposited()

    def free(self) -> None:
        """Release the window. Collective, so that no rank writes to it afterwards."""
        self._space.barrier()
        for source in self.sources:
            self._space.received[source] += self.deposited(source)
        self._space.windows.remove(self)
        self._buffers.clear()
        self._mutexes.clear()

"""Memory that all ranks of a comm can read: allocated vectors, and staging memory for all other tensors.

Subclasses decide how a rank accesses the memory of another rank: `shm` maps a memfd, `thread` is in the same process.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.comm.shm.private import PrivateView
from paceline.comm.shm.queue import Counters, Op, Queue

if TYPE_CHECKING:
    from paceline.comm.shm.mutex import Lock
    from paceline.comm.shm.one_sided import SharedBuffers

STAGING = 1 << 20  # bytes per rank in one staging place
PLACES = 4  # staging places, so that copying in, adding and copying out overlap


class Staging:
    """Staging memory for one piece of any tensor: a source and a result per rank, readable by all ranks."""

    def __init__(self, sources: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self._sources, self._results = sources, results
        self._last: tuple[tuple[Sequence[int], int, torch.dtype], tuple[list[Tensor], Tensor]] | None = None
        self.user: Any = None

    def views(self, members: Sequence[int], numel: int, dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
        """Return the source of every member and the result, as vectors. Equal calls in a row get the same vectors."""
        key = members, numel, dtype
        if self._last is None or self._last[0] != key:
            sources = [typed(self._sources[member], numel, dtype) for member in members]
            self._last = key, (sources, typed(self._results[members[0]], numel, dtype))
        return self._last[1]


class SharedSpace:
    """One rank's view of the memory, counters and operation queue that the ranks of a comm share."""

    def __init__(self, rank: int, size: int, counters: Counters, deadline: float) -> None:
        self.rank, self.size, self.counters = rank, size, counters
        self.queue = Queue(counters, deadline)
        self.queues: list[weakref.ref[Queue]] = [weakref.ref(self.queue)]  # those of this space and its branches
        self.queue.siblings = self.queues
        self.received = [0] * size
        self.windows: list[SharedBuffers] = []  # windows that are not freed yet
        self._places: dict[int, Staging] = {}
        self._next_place = 0
        self._reason = ""  # the call that barriers of an allocation belong to
        self._registered: list[tuple[int, int, Sequence[Tensor]]] = []
        self._results: list[tuple[int, int]] = []
        self._privates: dict[int, PrivateView] = {}  # private mappings, by the address of the result

    def map_all(self, nbytes: int, givers: int | None = None) -> Sequence[Tensor]:
        """Map a byte vector for each rank, or each rank below `givers`. A rank only writes its own. Collective."""
        raise NotImplementedError

    def map_one(self, nbytes: int) -> Tensor:
        """Map one byte vector that all ranks share. Collective."""
        raise NotImplementedError

    def map_privately(self) -> Tensor | None:
        """Return a private mapping of the vector that map_one has just mapped, or None if there is none."""
        return None

    def lock(self, line: Tensor, create: bool) -> Lock:
        """Return a lock in memory from map_all. The owner of the memory passes create=True; a barrier must follow."""
        raise NotImplementedError

    def branch(self) -> SharedSpace:
        """Return a space with the same vectors, but its own queue, counters and staging memory. Collective."""
        raise NotImplementedError

    def barrier(self, deadline: float | None = None) -> None:
        """Wait until all ranks have called barrier()."""
        op = Op("barrier", self._reason)
        op.early, op.waits_for, op.readers = True, tuple(range(self.size)), tuple(range(self.size))
        self.queue.submit(op).wait(deadline)

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        """Allocate a vector that other ranks can read in place. Ranks from `givers` on get the vector of rank 0."""
        sources = [typed(raw, numel, dtype) for raw in self.map_all(max(1, numel * dtype.itemsize), givers)]
        sources += sources[:1] * (self.size - len(sources))
        mine = sources[self.rank]
        if numel:
            self._registered.append((mine.data_ptr(), mine.data_ptr() + mine.nbytes, sources))
        return mine

    def allocate_result(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Allocate one vector that all ranks share."""
        result = typed(self.map_one(max(1, numel * dtype.itemsize)), numel, dtype)
        raw = self.map_privately()
        if raw is not None:
            self._privates[result.data_ptr()] = PrivateView(raw, numel, dtype)
        self._results.append((result.data_ptr(), result.data_ptr() + result.nbytes))
        return result

    def private_view(self, result: Tensor) -> PrivateView | None:
        return self._privates.get(result.data_ptr())

    def release(self, vector: Tensor) -> None:
        """Forget a vector that was allocated here. Its memory is freed with the last tensor that uses it."""
        start = vector.data_ptr()
        self._registered = [known for known in self._registered if known[0] != start]
        self._results = [known for known in self._results if known[0] != start]
        self._privates.pop(start, None)

    def peers_of(self, src: Tensor) -> Sequence[Tensor] | None:
        """Return the range that `src` covers, in the memory of every rank; None if `src` was not allocated here."""
        for start, stop, sources in self._registered:
            if start <= src.data_ptr() < stop and sources[0].dtype == src.dtype and src.is_contiguous():
                first = (src.data_ptr() - start) // src.itemsize
                return [source[first : first + src.numel()] for source in sources]
        return None

    def is_result(self, dst: Tensor) -> bool:
        return any(start <= dst.data_ptr() < stop for start, stop in self._results)

    def place(self, reason: Callable[[], str]) -> Staging:
        """Return the next staging memory in turn. Its first use allocates it; `reason()` names the call. Collective."""
        index, self._next_place = self._next_place, (self._next_place + 1) % PLACES
        return self._place(index, reason)

    def fill_places(self) -> None:
        for index in range(PLACES):
            self._place(index, lambda: "staging")

    def _place(self, index: int, reason: Callable[[], str]) -> Staging:
        if index not in self._places:
            self._reason = f"before {reason()}"
            self._places[index] = Staging(self.map_all(STAGING), self.map_all(STAGING))
            self._reason = ""
        return self._places[index]

    def clear(self) -> None:
        self._registered.clear()
        self._results.clear()
        self._privates.clear()
        self.windows.clear()
        self._places.clear()


class Branch(SharedSpace):
    """A space that shares the vectors of another space, but has its own order of operations.

    Groups of a split comm use it. Calls of a group and calls of other groups, or of the whole comm, may come in any
    order relative to each other.
    """

    def __init__(self, whole: SharedSpace, counters: Counters) -> None:
        super().__init__(whole.rank, whole.size, counters, whole.queue.deadline)
        self._whole = whole
        self.received, self.windows, self.queues = whole.received, whole.windows, whole.queues
        self.queue.siblings = self.queues
        self.queues[:] = [known for known in self.queues if known() is not None] + [weakref.ref(self.queue)]
        self.map_all, self.map_one, self.lock = whole.map_all, whole.map_one, whole.lock  # type: ignore[method-assign]
        self.allocate, self.allocate_result = whole.allocate, whole.allocate_result  # type: ignore[method-assign]
        self.release, self.branch = whole.release, whole.branch  # type: ignore[method-assign]
        self.peers_of, self.is_result = whole.peers_of, whole.is_result  # type: ignore[method-assign]

    def place(self, reason: Callable[[], str]) -> Staging:
        """Return the next staging memory. The first use allocates all of it, because later uses have no fixed order."""
        if not self._places:
            self.fill_places()
        return super().place(reason)


def typed(raw: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    return raw[: numel * dtype.itemsize].view(dtype)

"""Common ground of ranks that can read each other's memory: registered vectors and staging places.

How one rank sees the memory of another is left to the comm (`shm`: memfd; `thread`: the same process).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.comm.queue import Counters, Op, Queue

if TYPE_CHECKING:
    from paceline.comm.mutex import Lock
    from paceline.comm.window import SharedBuffers

STAGING = 1 << 20  # bytes per rank of one staging place
PLACES = 4  # staging places, so that copying in, adding and copying out overlap


class Staging:
    """Memory for one piece of any tensor: a source and a result of every rank, which all can read."""

    def __init__(self, sources: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        self.sources, self.results = sources, results
        self.user: Any = None


class Ground:
    """One rank's view of what all ranks of a comm share."""

    def __init__(self, rank: int, size: int, counters: Counters, deadline: float) -> None:
        self.rank, self.size, self.counters = rank, size, counters
        self.queue = Queue(counters, deadline)
        self.received = [0] * size
        self.windows: list[SharedBuffers] = []  # those that are not freed
        self._places: dict[int, Staging] = {}
        self._next_place = 0
        self._registered: list[tuple[int, int, Sequence[Tensor]]] = []
        self._results: list[tuple[int, int]] = []

    def map_all(self, nbytes: int, givers: int | None = None) -> Sequence[Tensor]:
        """One byte vector per rank (or of the first `givers`), mine writable by me, all readable. Collective."""
        raise NotImplementedError

    def map_one(self, nbytes: int) -> Tensor:
        """One byte vector for all ranks. Collective."""
        raise NotImplementedError

    def lock(self, line: Tensor, create: bool) -> Lock:
        """A lock on a line of memory that map_all gave; its owner creates it and a barrier follows."""
        raise NotImplementedError

    def barrier(self, deadline: float | None = None) -> None:
        """Until all ranks have come here."""
        op = Op("barrier", "")
        op.early, op.waits_for, op.readers = True, tuple(range(self.size)), tuple(range(self.size))
        self.queue.submit(op).wait(deadline)

    def allocate(self, numel: int, dtype: torch.dtype, givers: int | None = None) -> Tensor:
        """A vector of this rank that the others can read in place; a rank that gives nothing gets the first one's."""
        sources = [typed(raw, numel, dtype) for raw in self.map_all(max(1, numel * dtype.itemsize), givers)]
        sources += sources[:1] * (self.size - len(sources))
        mine = sources[self.rank]
        if numel:
            self._registered.append((mine.data_ptr(), mine.data_ptr() + mine.nbytes, sources))
        return mine

    def allocate_result(self, numel: int, dtype: torch.dtype) -> Tensor:
        """One vector for all ranks."""
        result = typed(self.map_one(max(1, numel * dtype.itemsize)), numel, dtype)
        self._results.append((result.data_ptr(), result.data_ptr() + result.nbytes))
        return result

    def release(self, vector: Tensor) -> None:
        """Forget a vector that was allocated here: its memory goes with the last tensor that lies in it."""
        start = vector.data_ptr()
        self._registered = [known for known in self._registered if known[0] != start]
        self._results = [known for known in self._results if known[0] != start]

    def peers_of(self, src: Tensor) -> Sequence[Tensor] | None:
        """Every rank's view of the range that `src` covers, if it lies in registered memory."""
        for start, stop, sources in self._registered:
            if start <= src.data_ptr() < stop and sources[0].dtype == src.dtype and src.is_contiguous():
                first = (src.data_ptr() - start) // src.itemsize
                return [source[first : first + src.numel()] for source in sources]
        return None

    def is_result(self, dst: Tensor) -> bool:
        return any(start <= dst.data_ptr() < stop for start, stop in self._results)

    def place(self) -> Staging:
        """The next staging place in turn; the first time around it is allocated, which is collective."""
        index, self._next_place = self._next_place, (self._next_place + 1) % PLACES
        return self._place(index)

    def fill_places(self) -> None:
        for index in range(PLACES):
            self._place(index)

    def _place(self, index: int) -> Staging:
        if index not in self._places:
            self._places[index] = Staging(self.map_all(STAGING), self.map_all(STAGING))
        return self._places[index]

    def clear(self) -> None:
        self._registered.clear()
        self._results.clear()
        self.windows.clear()
        self._places.clear()


def typed(raw: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    return raw[: numel * dtype.itemsize].view(dtype)

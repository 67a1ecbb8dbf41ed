"""A Board in shared memory: rank 0 writes its decisions as numbers, and the other ranks read them in order.

    board   | 1:7 | 2:3 | 3:4 | ...      entry k holds its own number k and the value, in one word of 8 bytes

A reader recognizes a new entry by its number, so it needs no counter and no lock; writing one aligned word is atomic.
The board is a ring buffer: rank 0 must not be ahead of a reader by more than the length of the board.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.comm.shm.queue import POSTED
from paceline.comm.shm.space import SharedSpace
from paceline.errors import PeerLost

_VALUE = 1 << 32
_NUMBERS = (1 << 31) - 1  # entries are numbered from 1 to this, then again from 1


class MemoryBoard:
    """A Board in memory that all ranks of a shared space can read. Only rank `first` writes to it."""

    def __init__(self, space: SharedSpace, first: int, length: int) -> None:
        self._space, self._first = space, first
        mine = space.allocate(length, torch.int64)
        mine.zero_()
        peers = space.peers_of(mine)
        assert peers is not None, "allocated memory is registered"
        self._entries: Any = peers[first].numpy()
        space.release(mine)  # no collective uses it; the memory is freed with this board
        self._length, self._count = length, 0
        space.barrier()  # nobody writes before all ranks have zeroed it

    def say(self, value: int) -> None:
        self._entries[self._count % self._length] = self._number() * _VALUE + value
        self._count += 1

    def _number(self) -> int:
        """Return the number of the next entry. It is never 0, because 0 marks an empty entry."""
        return self._count % _NUMBERS + 1

    def expect(self, count: int) -> None:
        """Do nothing: readers of memory need no preparation."""

    def free(self) -> None:
        """Do nothing: the memory is freed with the last reference to the board."""

    def heard(self) -> int | None:
        """Return the next number if it was written, else None."""
        number, value = divmod(int(self._entries[self._count % self._length]), _VALUE)
        if number != self._number():
            return None
        self._count += 1
        return value

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        """Wait for the next number and return it. Sleeps until the writer posts an operation, which follows `say`."""
        counters, queue = self._space.counters, self._space.queue
        limit, began = queue.deadline if deadline is None else deadline, time.monotonic()
        while True:
            seen = counters.value(POSTED, self._first)
            value = self.heard()
            if value is not None:
                return value
            waited = time.monotonic() - began
            why_lost = counters.why_lost(self._first) if waited > 0.05 else None
            if why_lost or waited >= limit:
                name = counters.name(self._first)
                why = why_lost or f"stopped answering after {waited:.1f} s"
                raise PeerLost(f"{name} {why} before it announced what to send next, {key}", rank=self._first)
            queue.progress()
            counters.sleep([(POSTED, self._first, seen)], min(0.05, limit - waited))

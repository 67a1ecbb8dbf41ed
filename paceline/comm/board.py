"""Where rank 0 writes numbers that the others read in order: for decisions that all must take alike.

    board   | 1:7 | 2:3 | 3:4 | ...      entry k holds its own number k and the value, in one word of 8 bytes

A reader knows an entry by its number, so it needs no counter and no lock; a store of one aligned word is never seen
half done. The board is a ring: rank 0 must not be ahead of a reader by more than its length.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from paceline.comm.ground import Ground
from paceline.comm.queue import POSTED
from paceline.errors import PeerLost

_VALUE = 1 << 32


class MemoryBoard:
    """A board in memory that all ranks of a ground can read; `first` writes it."""

    def __init__(self, ground: Ground, first: int, length: int) -> None:
        self._ground, self._first = ground, first
        mine = ground.allocate(length, torch.int64)
        mine.zero_()
        peers = ground.peers_of(mine)
        assert peers is not None, "allocated memory is registered"
        self._entries: Any = peers[first].numpy()
        ground.release(mine)  # it is read and written here alone, and goes with this board
        self._length, self._count = length, 0
        ground.barrier()  # nobody writes before all have emptied it

    def say(self, value: int) -> None:
        self._count += 1
        self._entries[(self._count - 1) % self._length] = self._count * _VALUE + value

    def expect(self, count: int) -> None:
        """Memory needs nobody who listens."""

    def heard(self) -> int | None:
        """The next number, if it is there."""
        number, value = divmod(int(self._entries[self._count % self._length]), _VALUE)
        if number != self._count + 1:
            return None
        self._count += 1
        return value

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        """The next number; sleeps until the writer posts something, which it does after it has written."""
        counters, queue = self._ground.counters, self._ground.queue
        limit, began = queue.deadline if deadline is None else deadline, time.monotonic()
        while True:
            seen = counters.value(POSTED, self._first)
            value = self.heard()
            if value is not None:
                return value
            waited = time.monotonic() - began
            excuse = counters.excuse(self._first) if waited > 0.05 else None
            if excuse or waited >= limit:
                name = counters.name(self._first)
                why = excuse or f"stopped answering after {waited:.1f} s"
                raise PeerLost(f"{name} {why} while it was to say what leaves next, {key}", rank=self._first)
            queue.progress()
            counters.sleep(POSTED, self._first, seen, min(0.05, limit - waited))

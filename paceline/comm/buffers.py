"""The memory of a window that its owner serves: what this rank shows, a buffer for each source, and a mutex.

Windows of tcp and gloo have it. Over shm, writers use the memory of the owner themselves (shm/one_sided.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.errors import PeerLost, WrongCommand

LOOK = 0.25  # seconds between two checks whether the other ranks are still there


class Turns:
    """A mutex that is granted to ranks in the order of their requests."""

    def __init__(self) -> None:
        self._lock, self.holder = threading.Lock(), -1
        self._waiting: deque[tuple[int, Callable[[], Any]]] = deque()

    def ask(self, rank: int, grant: Callable[[], Any]) -> None:
        """Request the mutex for a rank. `grant` is called when the rank gets it, at once or later."""
        with self._lock:
            if self.holder >= 0:
                self._waiting.append((rank, grant))
                return
            self.holder = rank
        grant()

    def leave(self, rank: int) -> None:
        with self._lock:
            if self.holder != rank:
                raise WrongCommand(f"rank {rank} released a mutex", why=f"rank {self.holder} holds it")
            self.holder, grant = self._waiting.popleft() if self._waiting else (-1, None)
        if grant is not None:
            grant()


class Buffer:
    """The value that one source has written, protected by a lock."""

    def __init__(self, numel: int, dtype: torch.dtype) -> None:
        self.data, self.scratch = torch.zeros(numel, dtype=dtype), torch.zeros(numel, dtype=dtype)
        self.lock, self.filled, self.fresh = threading.Lock(), False, 0

    def write(self, tensor: Tensor, *, add: bool) -> None:
        with self.lock:
            if add:
                self.data.add_(tensor)
            else:
                self.data.copy_(tensor)
            self.filled, self.fresh = True, self.fresh + 1

    def fold(self, into: Tensor, weight: float, clear: bool) -> bool:
        with self.lock:
            filled, self.fresh = self.filled, 0
            if filled:
                into.add_(self.data, alpha=weight)
            if clear:
                self.data.zero_()
                self.filled = False
        return filled


class OwnedBuffers:
    """The part of a window that lies on this rank."""

    def __init__(self, rank: int, size: int, numel: int, dtype: torch.dtype, sources: Sequence[Sequence[int]]) -> None:
        self._rank, self.numel = rank, numel
        self.sources = tuple(sources[rank])
        self.targets = tuple(peer for peer in range(size) if rank in sources[peer])
        self._buffers = {source: Buffer(numel, dtype) for source in self.sources}
        self._own, self._own_lock = torch.zeros(numel, dtype=dtype), threading.Lock()
        self.turns = Turns()

    def _check(self) -> None:
        """Raise if requests of other ranks are not served any more."""
        raise NotImplementedError

    def empty(self) -> Tensor:
        return torch.zeros_like(self._own)

    def show(self, tensor: Tensor) -> None:
        with self._own_lock:
            self._own.copy_(tensor)

    def shown(self) -> Tensor:
        with self._own_lock:
            return self._own.clone()

    def scratch(self, source: int) -> Tensor:
        return self._buffers[source].scratch

    def fold(self, source: int, into: Tensor, weight: float = 1.0, *, clear: bool = False) -> bool:
        self._check()
        return self._buffers[source].fold(into, weight, clear)

    def versions(self) -> dict[int, int]:
        return {source: buffer.fresh for source, buffer in self._buffers.items()}

    def _wait_for_turn(self, limit: float) -> None:
        granted, began = threading.Event(), time.monotonic()
        self.turns.ask(self._rank, granted.set)
        while not granted.wait(LOOK):
            self._check()
            if time.monotonic() - began > limit:
                holder = self.turns.holder
                raise PeerLost(f"rank {holder} did not release the mutex of rank {self._rank}", rank=holder)

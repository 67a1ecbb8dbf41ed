"""One host, CPU tensors: collectives in shared memory.

Each rank owns one cache line of counters in a control segment and sleeps on the counters of the others with
a futex. Segments are anonymous (memory.py). Reading is counted: bytes of another rank's source or result.

    control   | magic | pid, posted, shared, state | pid, posted, shared, state | ...     64 bytes each
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.comm import futex, memory
from paceline.comm.ground import Ground
from paceline.comm.lockstep import Lockstep
from paceline.comm.mutex import Lock, ProcessMutex
from paceline.comm.queue import DEADLINE
from paceline.comm.store import Store
from paceline.errors import PeerLost

LINE = 16  # words of 32 bits: one cache line
PID, STATE = 2, 3  # words after posted and shared
SPINS = 30  # looks of about 0.1 us each before going to sleep
_RUNNING, _LEFT, _FAILED = 1, 2, 3


class FutexCounters:
    """Two counters per rank in a control segment."""

    def __init__(self, rank: int, size: int, control: Tensor) -> None:
        self._rank, self._control, self.size = rank, control, size
        self._words: Any = (ctypes.c_uint32 * (control.numel() // 4)).from_address(control.data_ptr())
        self._base = control.data_ptr()
        self._words[self._at(PID, rank)] = os.getpid()
        self._words[self._at(STATE, rank)] = _RUNNING

    @staticmethod
    def _at(kind: int, rank: int) -> int:
        return (rank + 1) * LINE + kind

    def value(self, kind: int, rank: int) -> int:
        seen: int = self._words[(rank + 1) * LINE + kind]
        if not futex.STRONG_MEMORY:
            futex.fence()
        return seen

    def bump(self, kind: int) -> None:
        word = self._at(kind, self._rank)
        futex.fence()
        self._words[word] = (self._words[word] + 1) & 0xFFFFFFFF
        futex.wake(self._base + 4 * word)

    def sleep(self, kind: int, rank: int, seen: int, seconds: float) -> None:
        word = self._at(kind, rank)
        for _ in range(SPINS):
            if self._words[word] != seen:
                return
        futex.wait(self._base + 4 * word, seen, seconds)

    def pid(self, rank: int) -> int:
        return int(self._words[self._at(PID, rank)])

    def name(self, rank: int) -> str:
        return f"rank {rank} (pid {self.pid(rank)})"

    def excuse(self, rank: int) -> str | None:
        state = self._words[self._at(STATE, rank)]
        if state == _LEFT:
            return "left the group"
        if state == _FAILED:
            return "failed"
        return "died" if state == _RUNNING and not _alive(self.pid(rank)) else None

    def leave(self, why: str) -> None:
        self._words[self._at(STATE, self._rank)] = _LEFT if why == "left" else _FAILED


class ShmGround(Ground):
    """Anonymous segments that every rank maps."""

    def __init__(self, rank: int, size: int, store: Store, deadline: float, folder: Path | None, name: str) -> None:
        self._folder = folder
        words = 4 * LINE * (size + 1)
        control, number = self._open_control(rank, words + 8 * size, store, deadline, name)
        # One number per rank behind the counters: the descriptor of the segment that it is handing out.
        self._announced = control[words : words + 8 * size].view(torch.int64)
        self._futexes = FutexCounters(rank, size, control)
        super().__init__(rank, size, self._futexes, deadline)
        self.barrier()
        if number >= 0:
            os.close(number)

    def _open_control(self, rank: int, nbytes: int, store: Store, deadline: float, name: str) -> tuple[Tensor, int]:
        nbytes += -nbytes % 4096
        if rank == 0:
            number = memory.create(nbytes, self._folder)
            store.set(f"{name}/control", f"{os.getpid()} {number}")
            return memory.attach(number, nbytes), number
        pid, number = map(int, store.get(f"{name}/control", deadline).split())
        return memory.attach_from(pid, number, nbytes), -1

    def map_all(self, nbytes: int, givers: int | None = None) -> Sequence[Tensor]:
        return self._hand_out(nbytes, range(givers or self.size))

    def map_one(self, nbytes: int) -> Tensor:
        return self._hand_out(nbytes, range(1))[0]

    def lock(self, line: Tensor, create: bool) -> Lock:
        mutex = ProcessMutex(line.data_ptr())
        if create:
            mutex.create()
        return Lock(mutex, line, self.rank, self._futexes, self.queue.deadline)

    def _hand_out(self, nbytes: int, owners: range) -> list[Tensor]:
        """Owners create a segment and announce its number; everybody maps all; then the numbers are closed."""
        number, problem = -1, None
        try:
            number = memory.create(nbytes, self._folder) if self.rank in owners else -1
        except Exception as error:
            problem = error
        self._announced[self.rank] = -2 if problem else number
        self.barrier()
        numbers = self._announced.tolist()
        self.barrier()
        if problem is not None:
            raise problem
        for owner in owners:
            if numbers[owner] == -2:
                raise PeerLost(f"{self._futexes.name(owner)} could not get shared memory", rank=owner)
        views = [self._attach(owner, numbers[owner], nbytes) for owner in owners]
        self.barrier()
        if number >= 0:
            os.close(number)
        return views

    def _attach(self, owner: int, number: int, nbytes: int) -> Tensor:
        if owner == self.rank:
            return memory.attach(number, nbytes)
        return memory.attach_from(self._futexes.pid(owner), number, nbytes)


class ShmComm(Lockstep):
    """Ranks of one host that share memory. Two comms of one job have different names."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        deadline: float = DEADLINE,
        folder: Path | None = None,
        name: str = "shm",
    ) -> None:
        super().__init__(ShmGround(rank, size, store, deadline, folder, name), tuple(range(size)))


def _alive(pid: int) -> bool:
    """Whether a process still runs; one that has ended and waits to be collected does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"

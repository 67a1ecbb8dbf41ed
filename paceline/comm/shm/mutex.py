"""Locks in memory that several ranks share, between processes or between threads.

    line   | mutex, 64 bytes | holder | deposits | fresh | filled | ...        128 bytes, the rest are int64

Between processes, a lock is the robust mutex of the C library, because Python has no atomic compare-and-swap. When a
holder dies, the next acquire fails with EOWNERDEAD.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from paceline.comm.shm.futex import Timespec
from paceline.comm.shm.queue import Counters
from paceline.errors import PeerLost, WrongCommand

MUTEX, LINE = 64, 128  # bytes; a pthread_mutex_t has 40 to 48
HOLDER, DEPOSITS, FRESH, FILLED = range(4)  # numbers behind the mutex
LOOK = 0.25  # seconds between two checks whether the holder still runs
_SHARED, _ROBUST, _ERRORCHECK = 1, 1, 2


class Mutex(Protocol):
    """A mutex with a timeout, on which Lock is built."""

    def acquire(self, seconds: float) -> bool:
        """Return whether the mutex was acquired in time. Raises HolderDied if the process that held it has died."""

    def release(self) -> None: ...


class HolderDied(Exception):
    """The process that held a mutex has ended. The memory that the mutex protects may be half written."""


_libc = ctypes.CDLL(None, use_errno=False)


class ProcessMutex:
    """A robust mutex of the C library at an address that processes share."""

    def __init__(self, address: int) -> None:
        self._at = ctypes.c_void_p(address)

    def create(self) -> None:
        """Initialize the mutex. One process must call this once, before any process uses the mutex."""
        kind = ctypes.create_string_buffer(64)
        _check(_libc.pthread_mutexattr_init(kind))
        _check(_libc.pthread_mutexattr_setpshared(kind, _SHARED))
        _check(_libc.pthread_mutexattr_setrobust(kind, _ROBUST))
        _check(_libc.pthread_mutexattr_settype(kind, _ERRORCHECK))
        _check(_libc.pthread_mutex_init(self._at, kind))
        _check(_libc.pthread_mutexattr_destroy(kind))

    def acquire(self, seconds: float) -> bool:
        whole, part = divmod(time.time() + seconds, 1)
        code = _libc.pthread_mutex_timedlock(self._at, ctypes.byref(Timespec(int(whole), int(part * 1e9))))
        if code == errno.EOWNERDEAD:
            self.release()  # without pthread_mutex_consistent: from now on nobody can acquire it
            raise HolderDied
        if code == errno.ENOTRECOVERABLE:
            raise HolderDied
        if code == errno.EDEADLK:
            raise held_already()
        if code != errno.ETIMEDOUT:
            _check(code)
        return code == 0

    def release(self) -> None:
        _check(_libc.pthread_mutex_unlock(self._at))


class Lock:
    """A mutex that records its holder. Waiting for it has a deadline, and the error names the holder."""

    def __init__(self, mutex: Mutex, line: Tensor, rank: int, counters: Counters, deadline: float) -> None:
        self._mutex, self._line, self._rank, self._counters = mutex, line, rank, counters
        self._deadline = deadline
        self.numbers: Any = (ctypes.c_int64 * ((LINE - MUTEX) // 8)).from_address(line.data_ptr() + MUTEX)

    @contextlib.contextmanager
    def held(self, what: object, deadline: float | None = None) -> Iterator[Any]:
        """Hold the lock inside the with-block, and yield the numbers that follow the mutex in its line."""
        self._counters.check_process()
        self._acquire(what, self._deadline if deadline is None else deadline)
        self.numbers[HOLDER] = self._rank + 1
        try:
            yield self.numbers
        finally:
            self.numbers[HOLDER] = 0
            self._mutex.release()

    def _acquire(self, what: object, limit: float) -> None:
        began = time.monotonic()
        try:
            while not self._mutex.acquire(max(0.0, min(LOOK, limit - (time.monotonic() - began)))):
                holder, waited = self.numbers[HOLDER] - 1, time.monotonic() - began
                why_lost = self._counters.why_lost(holder) if holder >= 0 else None
                if why_lost and holder == self.numbers[HOLDER] - 1:
                    raise _lost(self._counters.name(holder), f"{why_lost} while it held", what, holder)
                if waited >= limit:
                    raise self._late(what, holder, waited)
        except HolderDied:
            dead = self._dead()
            raise _lost(
                self._counters.name(dead) if dead >= 0 else "a rank", "died while it held", what, dead
            ) from None

    def _late(self, what: object, holder: int, waited: float) -> PeerLost:
        name = self._counters.name(holder) if holder >= 0 else "a rank"
        return PeerLost(
            f"{name} did not release {what} within {waited:.1f} s",
            rank=None if holder < 0 else holder,
            remedy="look at that rank's output; if its work takes longer, set --deadline SECONDS",
        )

    def _dead(self) -> int:
        """Return the rank that held the lock. If none was recorded, return the first rank that is lost, or -1."""
        if self.numbers[HOLDER]:
            return int(self.numbers[HOLDER]) - 1
        return next((rank for rank in range(self._counters.size) if self._counters.why_lost(rank)), -1)


def _lost(name: str, how: str, what: object, rank: int) -> PeerLost:
    return PeerLost(f"{name} {how} {what}", rank=None if rank < 0 else rank, why="it may be half written")


def held_already() -> WrongCommand:
    return WrongCommand(
        "a mutex", why="this rank holds it already", remedy="leave the first with-block before the next"
    )


def _check(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code), "pthread mutex")

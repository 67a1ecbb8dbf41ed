"""Sleep on a word of shared memory until another process changes it (Linux futex)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

_CALL_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE, _EVERYBODY = 0, 1, 2**31 - 1
_WAITV, _SIZE_32 = 449, 2  # the system call number is the same on all architectures; since Linux 5.16
SLICE = 0.01  # seconds to sleep on the first word, where the kernel cannot wait for several


class Timespec(ctypes.Structure):
    """struct timespec of the C library."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Waiter(ctypes.Structure):
    _fields_ = (
        ("seen", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_machine = platform.machine()
_number = _CALL_NUMBERS.get(_machine)
# x86-64 does not reorder stores with stores, or loads with loads.
STRONG_MEMORY = _machine in ("x86_64", "AMD64")
_order = threading.Lock()


def available() -> bool:
    return sys.platform == "linux" and _number is not None


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep while the word at `address` still holds `seen`, at most `seconds`."""
    whole = int(seconds)
    limit = Timespec(whole, int((seconds - whole) * 1e9))
    if _libc.syscall(_number, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0):
        _check(ctypes.get_errno())


def wait_any(words: Sequence[tuple[int, int]], seconds: float) -> None:
    """Sleep while every word holds its expected value, at most `seconds`. A word is (address, expected value)."""
    if len(words) == 1:
        return wait(*words[0], seconds)
    if not _waits_for_several:
        return wait(*words[0], min(SLICE, seconds))
    waiters = (_Waiter * len(words))(*(_Waiter(seen, address, _SIZE_32, 0) for address, seen in words))
    whole, part = divmod(time.monotonic() + seconds, 1)
    limit = Timespec(int(whole), int(part * 1e9))
    if _libc.syscall(_WAITV, waiters, len(words), 0, ctypes.byref(limit), time.CLOCK_MONOTONIC) < 0:
        _check(ctypes.get_errno())
    return None


def _can_wait_for_several() -> bool:
    """Return whether the kernel has futex_waitv. If so, a call without words fails with EINVAL, else with ENOSYS."""
    return available() and _libc.syscall(_WAITV, None, 0, 0, None, 0) < 0 and ctypes.get_errno() == errno.EINVAL


def _check(code: int) -> None:
    if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
        raise OSError(code, os.strerror(code), "futex")


def waker(address: int) -> Callable[[], None]:
    """Return a function that wakes all processes which sleep on the word at `address`."""
    return partial(_libc.syscall, _number, ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)


def wake(address: int) -> None:
    """Wake all processes that sleep on the word at `address`."""
    waker(address)()


def fence() -> None:
    """Make sure that all memory accesses before this call happen before all accesses after it.

    Later accesses cannot move before the acquisition of a lock; earlier ones cannot move behind its release. With one
    lock, both could still move inside the locked section and change places there. With two locked sections, nothing can
    pass the point between them. This has not run on machines other than x86-64.
    """
    if not STRONG_MEMORY:
        with _order:
            pass
        with _order:
            pass


_waits_for_several = _can_wait_for_several()

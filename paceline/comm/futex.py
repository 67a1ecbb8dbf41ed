"""Sleeping on a word of shared memory until another process changes it (Linux futex)."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading

_CALL_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_WAIT, _WAKE, _EVERYBODY = 0, 1, 2**31 - 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_machine = platform.machine()
_number = _CALL_NUMBERS.get(_machine)
# x86-64 keeps stores, and loads, in order by itself.
STRONG_MEMORY = _machine in ("x86_64", "AMD64")
_order = threading.Lock()


def available() -> bool:
    return sys.platform == "linux" and _number is not None


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep while the word at `address` still holds `seen`, at most `seconds`."""
    whole = int(seconds)
    limit = _Timespec(whole, int((seconds - whole) * 1e9))
    if _libc.syscall(_number, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(seen), ctypes.byref(limit), None, 0):
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT):
            raise OSError(code, os.strerror(code), "futex")


def wake(address: int) -> None:
    """Wake everybody who sleeps on the word at `address`."""
    _libc.syscall(_number, ctypes.c_void_p(address), _WAKE, _EVERYBODY, None, None, 0)


def fence() -> None:
    """Order memory accesses before and after: taking a lock does it on every machine."""
    if not STRONG_MEMORY:
        with _order:
            pass

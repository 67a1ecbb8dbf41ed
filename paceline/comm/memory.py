"""Shared memory that leaves nothing behind: anonymous files that other processes of the host open by number.

A segment is a memfd. Where memfd_create is forbidden it is an unnamed file (O_TMPFILE) in /dev/shm, whose
room is checked first. Peers open /proc/PID/fd/NUMBER, so there is no name to clean up, even after kill -9.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import NoRoom

FOLDER = Path("/dev/shm")

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def create(nbytes: int, folder: Path | None = None) -> int:
    """A new segment as a file descriptor, its memory reserved."""
    number = _unnamed_file(nbytes, folder) if folder else _memfd(nbytes)
    try:
        os.posix_fallocate(number, 0, nbytes)
    except OSError as problem:
        os.close(number)
        raise NoRoom(
            f"shared memory of {nbytes / 1e6:.0f} MB could not be reserved",
            why=os.strerror(problem.errno or 0),
        ) from None
    return number


def _memfd(nbytes: int) -> int:
    try:
        return os.memfd_create("paceline", os.MFD_CLOEXEC)
    except OSError as problem:
        if problem.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
        return _unnamed_file(nbytes, FOLDER)


def _unnamed_file(nbytes: int, folder: Path) -> int:
    check_room(nbytes, folder)
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def check_room(nbytes: int, folder: Path) -> None:
    """Refuse before step 1 what would end in a bus error in the middle of it."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if nbytes > free:
        raise NoRoom(
            f"{folder} has {free / 1e6:.2f} MB left, {nbytes / 1e6:.2f} MB are needed",
            why="gradients of one host are exchanged through shared memory",
            remedy="docker run --shm-size=8g (or --ipc=host), or --comm gloo",
        )


def attach(number: int, nbytes: int) -> Tensor:
    """A segment as a byte vector, which ends with the last tensor that lies in it.

    mmap.mmap would keep a descriptor for each, and a process has about a thousand.
    """
    if os.fstat(number).st_size < nbytes:
        raise ValueError(f"a segment of {os.fstat(number).st_size} bytes is too short for {nbytes}")
    access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    address = _libc.mmap(None, nbytes, access, flags, number, 0)
    if address == _FAILED:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem), f"{nbytes} bytes of shared memory")
    view = (ctypes.c_ubyte * nbytes).from_address(address)
    # Not when the interpreter ends: others may still look at the counters that lie there.
    weakref.finalize(view, _libc.munmap, address, nbytes).atexit = False
    return torch.frombuffer(view, dtype=torch.uint8)


def attach_from(pid: int, number: int, nbytes: int) -> Tensor:
    """The segment that another process of this host holds."""
    own = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return attach(own, nbytes)
    finally:
        os.close(own)


def host_identity() -> str:
    """Equal for two processes exactly if they can open each other's segments by process id."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"

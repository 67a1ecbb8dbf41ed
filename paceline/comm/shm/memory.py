"""Shared memory in anonymous files. Other processes of the host open them through /proc, and nothing needs cleanup.

A segment is a sealed memfd, or an unnamed file (O_TMPFILE) in /dev/shm where memfd_create is forbidden. Peers open
it as /proc/PID/fd/NUMBER, so no name is left behind, even after kill -9.

A descriptor number alone proves nothing: its owner may have closed it and opened another file with the same number.
So a segment is announced with device, inode and size, and ends with the key of its job:

    segment   | bytes of the ranks ... | key, 64 bytes |

A peer first compares the identity without opening the file (O_PATH), then reads the key, and only then opens the
segment for writing. A file that this job did not create is never opened for writing.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.errors import NoRoom, PeerLost

FOLDER = Path("/dev/shm")

_libc: Any = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


KEY = 64  # bytes at the end of a segment


class Segment(NamedTuple):
    """A segment as its owner announces it: the descriptor, and the identity of the file behind it."""

    pid: int
    number: int
    device: int
    inode: int
    nbytes: int


def new_key() -> bytes:
    """Return a random key for the segments of one job."""
    return secrets.token_hex(KEY // 2).encode()


def create(nbytes: int, key: bytes, folder: Path | None = None) -> int:
    """Create a segment, reserve memory for `nbytes` and the key, and return its file descriptor."""
    whole = _room_for(nbytes)
    number = _unnamed_file(whole, folder) if folder else _memfd(whole)
    try:
        os.posix_fallocate(number, 0, whole)
        os.pwrite(number, key, whole - KEY)
        seal(number)
    except OSError as problem:
        os.close(number)
        raise NoRoom(
            f"shared memory of {nbytes / 1e6:.0f} MB could not be reserved",
            why=os.strerror(problem.errno or 0),
        ) from None
    return number


def _room_for(nbytes: int) -> int:
    return nbytes + -nbytes % KEY + KEY


def seal(number: int) -> None:
    """Forbid resizing a memfd, because resizing would kill other processes with SIGBUS. Other files stay unsealed."""
    try:
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.EPERM):
            raise


def announce(number: int) -> Segment:
    """Describe a segment of this process for the others."""
    status = os.fstat(number)
    return Segment(os.getpid(), number, status.st_dev, status.st_ino, status.st_size)


def _memfd(nbytes: int) -> int:
    try:
        return os.memfd_create("paceline", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as problem:
        if problem.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
        return _unnamed_file(nbytes, FOLDER)


def _unnamed_file(nbytes: int, folder: Path) -> int:
    check_room(nbytes, folder)
    return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def check_room(nbytes: int, folder: Path) -> None:
    """Raise NoRoom if the folder has too little space. Otherwise a later write would end in a bus error."""
    room = os.statvfs(folder)
    free = room.f_bavail * room.f_frsize
    if nbytes > free:
        raise NoRoom(
            f"{folder} has {free / 1e6:.2f} MB left, {nbytes / 1e6:.2f} MB are needed",
            why="gradients of one host are exchanged through shared memory",
            remedy="docker run --shm-size=8g (or --ipc=host), or --comm gloo",
        )


def attach(number: int, nbytes: int, *, private: bool = False) -> Tensor:
    """Map a segment of this process as a byte vector. It is unmapped with the last tensor that uses it.

    A page of a private mapping is copied when it is first written. Such a mapping is not populated in advance, because
    that would copy all pages.

    Python's mmap.mmap is not used: it keeps a descriptor open for each mapping, and a process may have only about a
    thousand.
    """
    if os.fstat(number).st_size < _room_for(nbytes):
        raise ValueError(f"a segment of {os.fstat(number).st_size} bytes is too short for {nbytes}")
    access = mmap.PROT_READ | mmap.PROT_WRITE
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    address = _libc.mmap(None, nbytes, access, flags, number, 0)
    if address == _FAILED:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem), f"{nbytes} bytes of shared memory")
    view = (ctypes.c_ubyte * nbytes).from_address(address)
    # Not at interpreter exit: other code may still read counters in the mapping.
    weakref.finalize(view, _libc.munmap, address, nbytes).atexit = False
    return torch.frombuffer(view, dtype=torch.uint8)


def attach_from(segment: Segment, key: bytes, nbytes: int, *, private: bool = False) -> Tensor:
    """Map a segment that another process of this host announced, after checking its identity and key."""
    path = _open(f"/proc/{segment.pid}/fd/{segment.number}", os.O_PATH, segment)
    try:
        status = os.fstat(path)
        if (status.st_dev, status.st_ino, status.st_size) != segment[2:]:
            raise _gone(segment, "another file has its descriptor by now")
        _check_key(path, segment, key)
        own = _open(f"/proc/self/fd/{path}", os.O_RDWR, segment)
    finally:
        os.close(path)
    try:
        return attach(own, nbytes, private=private)
    finally:
        os.close(own)


def _check_key(path: int, segment: Segment, key: bytes) -> None:
    readable = _open(f"/proc/self/fd/{path}", os.O_RDONLY, segment)
    try:
        if os.pread(readable, KEY, segment.nbytes - KEY) != key:
            raise _gone(segment, "its key is that of another job")
    finally:
        os.close(readable)


def _open(name: str, flags: int, segment: Segment) -> int:
    try:
        return os.open(name, flags | os.O_CLOEXEC)
    except OSError as problem:
        raise _gone(segment, os.strerror(problem.errno or 0)) from None


def _gone(segment: Segment, why: str) -> PeerLost:
    return PeerLost(
        f"the shared memory that process {segment.pid} announced is not there",
        why=why,
        remedy="start all ranks of the job together",
    )


def host_identity() -> str:
    """Return a text that is equal for two processes exactly if they are on the same host.

    Processes must share a pid namespace to open each other's segments. The network namespace distinguishes hosts of
    a lab, which share one kernel.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.readlink('/proc/self/ns/net')}"

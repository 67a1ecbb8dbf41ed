"""Read files that a user names: regular files only, up to a size limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from paceline.errors import WrongCommand

LARGEST = 32 << 20  # bytes; a record, a profile or an event file of a million steps fits
ABSENT = os.strerror(errno.ENOENT)
_PIECE = 1 << 16
_KINDS = {
    stat.S_IFDIR: "it is a directory",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


def open_file(path: Path | str) -> IO[bytes]:
    """Open a regular file for reading bytes. Raises for a pipe, a device or a directory."""
    try:
        return open(path, "rb", opener=_open_regular)
    except (OSError, ValueError) as problem:
        raise _refused(path, problem) from None


def read_bytes(path: Path | str, most: int = LARGEST) -> bytes:
    """Read a regular file. Raises for anything else without reading it, and for more than `most` bytes."""
    try:
        number = _open_regular(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read(number, most)
        finally:
            os.close(number)
    except (OSError, ValueError) as problem:  # ValueError: a null character in the path
        raise _refused(path, problem) from None


def read_text(path: Path | str, most: int = LARGEST) -> str:
    """Read a regular file as UTF-8."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError:
        raise WrongCommand(f"{path} cannot be read", why="it is not text", remedy="a file in UTF-8") from None


def _open_regular(path: Path | str, flags: int) -> int:
    number = os.open(path, flags | os.O_NONBLOCK)  # opening a pipe without a writer must not block
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    if kind != stat.S_IFREG:
        os.close(number)
        raise OSError(0, _KINDS.get(kind, "it is no regular file"))
    return number


def _read(number: int, most: int) -> bytes:
    """Read a file to its end, because files in /proc report no size. Raises OSError above `most` bytes."""
    size = os.fstat(number).st_size
    content = b""
    while len(content) <= most and size <= most:
        piece = os.read(number, max(size + 1 - len(content), _PIECE))
        content += piece
        if not piece or len(content) == size:
            return content
    raise OSError(0, f"it is larger than {most:,} bytes")


def _refused(path: Path | str, problem: OSError | ValueError) -> WrongCommand:
    why = getattr(problem, "strerror", None) or str(problem)
    return WrongCommand(f"{path} cannot be read", why=why, remedy="the path of a file")

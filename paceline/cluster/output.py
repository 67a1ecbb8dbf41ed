"""Pass on the output of workers in whole lines, to one log per rank and to the terminal.

    pipe of a rank --> Lines (cuts at newlines) --> Output --> rank-K.log
                                                         --> Outlet "[K] ..." or the caller's on_line

Nothing here blocks: if the terminal is slow, the launcher stops reading output but still supervises the workers.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from pathlib import Path
from typing import IO, TextIO

from paceline.errors import NoRoom

OnLine = Callable[[int, str, str], None]

LONGEST = 1 << 20  # bytes; a longer text without a newline is passed on as a line
PIPE_MAX = 1 << 20  # bytes; the largest pipe (fs.pipe-max-size)
BACKLOG = 1 << 20  # bytes; with more waiting for the terminal, reading from workers stops


class Lines:
    """One pipe of a worker. It is read without blocking, and passed on in blocks of whole lines."""

    def __init__(self, pipe: IO[bytes], pass_on: Callable[[bytes], None]) -> None:
        self._pipe, self._pass_on = pipe, pass_on
        self._rest = bytearray()
        self.fd = pipe.fileno()
        os.set_blocking(self.fd, False)

    @property
    def open(self) -> bool:
        return not self._pipe.closed

    def read(self) -> int:
        """Read what the pipe holds and pass it on. Return the number of bytes read."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return 0
        if not data:
            self.close()
        self._take(data)
        return len(data)

    def drain(self) -> None:
        """Read the rest after the worker has ended. There is a limit, because a surviving child may still write."""
        taken = 0
        while self.open and taken < PIPE_MAX:
            nbytes = self.read()
            if not nbytes:
                break
            taken += nbytes
        self.close()

    def close(self) -> None:
        if self.open:
            self._pipe.close()
            self._emit()

    def _take(self, data: bytes) -> None:
        whole, newline, rest = data.rpartition(b"\n")
        self._rest += whole
        if newline or len(self._rest) + len(rest) >= LONGEST:
            self._emit(always=bool(newline))
        self._rest += rest

    def _emit(self, *, always: bool = False) -> None:
        if self._rest or always:
            block, self._rest = bytes(self._rest) + b"\n", bytearray()
            self._pass_on(block)


class Outlet:
    """An output of the launcher that is written without blocking. Output for a reader that is gone is dropped."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._waiting = bytearray()
        self._poll = select.poll()
        self.fd = _number_of(stream)
        if self.fd >= 0:
            self._poll.register(self.fd, select.POLLOUT)
            self._flush()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def put(self, block: bytes) -> None:
        if self.fd >= 0:
            self._waiting += block
        elif self._stream:
            self._stream.write(block.decode("utf-8", "replace"))

    def pump(self) -> None:
        while self._waiting and self._poll.poll(0):
            try:
                # A pipe that polls as writable accepts this many bytes without blocking.
                written = os.write(self.fd, self._waiting[: select.PIPE_BUF])
            except BlockingIOError:
                return
            except OSError as problem:
                written = self._give_up(problem)
            del self._waiting[:written]

    def _flush(self) -> None:
        """Flush what this process has printed so far, so that it appears before the workers' output."""
        assert self._stream is not None
        try:
            self._stream.flush()
        except OSError as problem:
            self._give_up(problem)

    def _give_up(self, problem: OSError) -> int:
        """Redirect the output to /dev/null when its reader is gone (`| head`), so that the run continues."""
        if problem.errno not in (errno.EPIPE, errno.EIO):
            raise problem
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fd, inheritable=self.fd <= 2)
        os.close(nothing)
        return len(self._waiting)


class Output:
    """The logs and the terminal, for the lines of all ranks.

    Errors are not raised while workers run: the first one is kept in `problem` for the job, and later lines are
    dropped.
    """

    def __init__(
        self,
        folder: Path,
        stdout: TextIO | None,
        stderr: TextIO | None,
        *,
        prefix: bool,
        on_line: OnLine | None = None,
    ) -> None:
        self._folder, self._prefix, self._on_line = folder, prefix, on_line
        self._outlets = {"stdout": Outlet(stdout), "stderr": Outlet(stderr)}
        self._logs: dict[int, IO[bytes]] = {}
        self.problem: BaseException | None = None

    @property
    def full(self) -> bool:
        return any(outlet.waiting > BACKLOG for outlet in self._outlets.values())

    @property
    def waiting(self) -> list[int]:
        """Return the descriptors that have output waiting, for the poll loop."""
        return [outlet.fd for outlet in self._outlets.values() if outlet.waiting and not self.problem]

    def open(self, rank: int) -> None:
        self._logs[rank] = (self._folder / f"rank-{rank}.log").open("wb")

    def put(self, rank: int, stream: str, block: bytes) -> None:
        """Write whole lines to the log of a rank, and to the terminal or on_line."""
        self._try(lambda: self._put(rank, stream, block))

    def pump(self) -> None:
        for outlet in self._outlets.values():
            self._try(outlet.pump)

    def close(self) -> None:
        for log in self._logs.values():
            try:
                log.close()
            except OSError:  # the same error as before, which `problem` holds
                pass

    def _put(self, rank: int, stream: str, block: bytes) -> None:
        self._logs[rank].write(block)
        self._logs[rank].flush()
        if self._on_line:
            for line in block[:-1].split(b"\n"):
                self._on_line(rank, stream, line.decode("utf-8", "replace"))
        else:
            self._outlets[stream].put(self._marked(rank, block))

    def _marked(self, rank: int, block: bytes) -> bytes:
        if not self._prefix:
            return block
        mark = f"[{rank}] ".encode()
        return mark + block[:-1].replace(b"\n", b"\n" + mark) + b"\n"

    def _try(self, action: Callable[[], None]) -> None:
        if self.problem:
            return
        try:
            action()
        except BaseException as problem:
            self.problem = self._explained(problem)

    def _explained(self, problem: BaseException) -> BaseException:
        if isinstance(problem, OSError) and problem.errno == errno.ENOSPC:
            why = f"the disk is full that holds {self._folder} or the file where the output goes"
            return NoRoom("the workers' output cannot be written", why=why)
        return problem


def _number_of(stream: TextIO | None) -> int:
    """Return the file descriptor of a stream, or -1 if it has none (a notebook, a test, closed by the shell)."""
    try:
        return -1 if stream is None else stream.fileno()
    except (OSError, ValueError):
        return -1

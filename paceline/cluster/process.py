"""One worker process: its session, its pipes, and its exit status.

A worker that has ended stays a zombie until the job closes. So neither its pid nor its process group id can be reused
while the job might still send signals to them.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.cluster.cause import Tail, cause_in
from paceline.cluster.forking import Zygote
from paceline.cluster.output import Lines
from paceline.errors import PacelineError, WrongCommand

PassOn = Callable[[str, bytes], None]


class WorkerProcess:
    """A worker process. `status` is None while it runs, then its exit code, or minus the signal that killed it."""

    def __init__(
        self,
        rank: int,
        argv: Sequence[str],
        environ: Mapping[str, str],
        pass_on: PassOn,
        *,
        foreground: bool = False,
        zygote: Zygote | None = None,
    ) -> None:
        """Start the worker, or have a zygote fork it. In the foreground it gets keyboard input and Ctrl-C."""
        self.rank = rank
        self._terminal = Terminal() if foreground else None
        self.status: int | None = None
        self._tails = {"stdout": Tail(), "stderr": Tail()}
        forks = zygote is not None and not foreground and zygote.takes(argv, environ)
        forked = zygote.fork(argv, environ) if zygote is not None and forks else None
        self._process = forked or _spawn(argv, environ, self._terminal)
        self.pid = self._process.pid
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            self.send(signal.SIGKILL)
            self._process.wait()
            raise
        self.pipes = () if foreground else (self._lines("stdout", pass_on), self._lines("stderr", pass_on))

    @property
    def running(self) -> bool:
        return self.status is None

    @property
    def last_words(self) -> str:
        """Return the cause of a failure, as found in the worker's output."""
        return cause_in(self._tails["stderr"].text, self._tails["stdout"].text)

    def send(self, number: int) -> None:
        """Send a signal to the worker and to all processes in its group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def look(self) -> bool:
        """Return whether the worker has ended. If so, kill the rest of its group and read the rest of its output."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        self.status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self.send(signal.SIGKILL)
        for lines in self.pipes:
            lines.drain()
        return True

    def close(self) -> None:
        """Reap the process if it has ended, and close its pipes. A process that survives SIGKILL is not waited for."""
        if self.status is not None:
            self._process.wait()
        for lines in self.pipes:
            lines.close()
        os.close(self.pidfd)
        if self._terminal is not None:
            self._terminal.take_back()

    def group_is_gone(self) -> bool:
        """Return whether the process group is empty. Zombies do not count. Call it after close()."""
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return not any(_lives_in(self.pid, stat) for stat in Path("/proc").glob("[0-9]*/stat"))

    pipes: tuple[Lines, ...]

    def _lines(self, stream: str, pass_on: PassOn) -> Lines:
        pipe = getattr(self._process, stream)

        def keep(block: bytes) -> None:
            self._tails[stream].add(block)
            pass_on(stream, block)

        return Lines(pipe, keep)


def _lives_in(group: int, stat: Path) -> bool:
    try:
        state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(its_group) == group and state not in "ZX"


class Terminal:
    """The terminal of this process, lent to a worker that runs in the foreground."""

    def __init__(self) -> None:
        try:
            self._fd = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._fd = -1  # there is none, as in a batch job

    def lend(self, group: int) -> None:
        self._give(group)

    def take_back(self) -> None:
        self._give(os.getpgrp())
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _give(self, group: int) -> None:
        if self._fd < 0:
            return
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # else a process in the background would be stopped
        try:
            os.tcsetpgrp(self._fd, group)
        except OSError:
            pass
        finally:
            signal.signal(signal.SIGTTOU, before)


def _in_foreground(argv: Sequence[str], environ: Mapping[str, str], terminal: Terminal) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(list(argv), env=dict(environ), preexec_fn=os.setpgrp)
    terminal.lend(process.pid)
    return process


def _spawn(argv: Sequence[str], environ: Mapping[str, str], terminal: Terminal | None) -> subprocess.Popen[bytes]:
    try:
        if terminal is not None:
            return _in_foreground(argv, environ, terminal)
        return subprocess.Popen(
            list(argv),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
    except OSError as problem:
        what, why = f"{argv[0]} cannot be started", os.strerror(problem.errno or 0)
        if problem.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC):
            raise WrongCommand(what, why=why, remedy=f"which {argv[0]}, or python {argv[0]}") from None
        raise PacelineError(what, why=why, remedy="ulimit -n -u shows the limits of this user") from None

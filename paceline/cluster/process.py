"""One worker process: its session, its pipes, and how it ended.

It stays a zombie until the job closes, so that neither its pid nor its process group id can be reused while the job
might still send signals to them.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.cluster.cause import Tail, cause_in
from paceline.cluster.output import Lines
from paceline.errors import PacelineError, WrongCommand

PassOn = Callable[[str, bytes], None]


class WorkerProcess:
    """A worker process. `status` is None while it runs, then its exit code, or minus the signal that killed it."""

    def __init__(self, rank: int, argv: Sequence[str], environ: Mapping[str, str], pass_on: PassOn) -> None:
        self.rank = rank
        self.status: int | None = None
        self._tails = {"stdout": Tail(), "stderr": Tail()}
        self._process = _spawn(argv, environ)
        self.pid = self._process.pid
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            self.send(signal.SIGKILL)
            self._process.communicate()
            raise
        self.pipes = (self._lines("stdout", pass_on), self._lines("stderr", pass_on))

    @property
    def running(self) -> bool:
        return self.status is None

    @property
    def last_words(self) -> str:
        """Return the cause of a failure according to the worker's output."""
        return cause_in(self._tails["stderr"].text, self._tails["stdout"].text)

    def send(self, number: int) -> None:
        """Send a signal to the worker and to all processes in its group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def look(self) -> bool:
        """Return whether it has ended. If so, kill what it left in its group and read the rest of its output."""
        result = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return False
        self.status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self.send(signal.SIGKILL)
        for lines in self.pipes:
            lines.drain()
        return True

    def close(self) -> None:
        """Reap the process. One that even SIGKILL does not end is left to the kernel."""
        if self.status is not None:
            self._process.wait()
        for lines in self.pipes:
            lines.close()
        os.close(self.pidfd)

    def group_is_gone(self) -> bool:
        """Return whether the process group is empty; call it after close(). Zombies do not count."""
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return not any(_lives_in(self.pid, stat) for stat in Path("/proc").glob("[0-9]*/stat"))

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


def _spawn(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
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

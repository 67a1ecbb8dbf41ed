"""One worker process: its own session, its pipes, and how it ended.

It stays a zombie until the job closes, so that neither its pid nor the id of its process group can be reused
while somebody might still send them a signal.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.errors import PacelineError, WrongCommand
from paceline.launchers.output import Lines

PassOn = Callable[[str, bytes], None]


class Worker:
    """`status` is None while it runs, then its exit code, or minus the signal that killed it."""

    def __init__(self, rank: int, argv: Sequence[str], environ: Mapping[str, str], pass_on: PassOn) -> None:
        self.rank = rank
        self.status: int | None = None
        self.last_words = ""
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

    def send(self, number: int) -> None:
        """To the worker and all that it started in its process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def look(self) -> bool:
        """Whether it has ended. Then what it left in its group is killed and the rest of its output read."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return False
        self.status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self.send(signal.SIGKILL)
        for lines in self.pipes:
            lines.drain()
        return True

    def close(self) -> None:
        """Reap it. A process that even SIGKILL does not end is left to the kernel."""
        if self.status is not None:
            self._process.wait()
        for lines in self.pipes:
            lines.close()
        os.close(self.pidfd)

    def group_is_gone(self) -> bool:
        """To be asked after close(). Zombies do not count: they are init's to reap, and some inits take seconds."""
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return True
        return not any(_lives_in(self.pid, stat) for stat in Path("/proc").glob("[0-9]*/stat"))

    def _lines(self, stream: str, pass_on: PassOn) -> Lines:
        pipe = getattr(self._process, stream)

        def keep(block: bytes) -> None:
            if stream == "stderr":
                self._remember(block)
            pass_on(stream, block)

        return Lines(pipe, keep)

    def _remember(self, block: bytes) -> None:
        lines = block[-4096:].decode("utf-8", "replace").split("\n")
        self.last_words = next((line for line in reversed(lines) if line.strip()), self.last_words)


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
        raise PacelineError(what, why=why, remedy="ulimit -n -u shows what this user may have") from None

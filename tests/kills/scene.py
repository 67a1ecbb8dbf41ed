"""One command under observation: its processes, found by a mark in their environment, and everything it leaves."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
VARIABLE = "PACELINE_KILLS"
STEP = 0.005  # seconds between two looks


class Scene:
    """A command that runs in a folder of its own, with its temporary files below it."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.folder, self.temporary, self.runs = folder, folder / "tmp", folder / "runs"
        self.temporary.mkdir()
        self._mark = secrets.token_hex(12)
        self.shared_before = shared_memory()
        self._output = (folder / "output").open("wb")
        self.began = time.monotonic()
        self.process = self.start(words)

    def start(self, words: list[str]) -> subprocess.Popen[bytes]:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "torch")}  # torch keeps it for the next process
        environ = {**os.environ, **caches, VARIABLE: self._mark, "TMPDIR": str(self.temporary)}
        return subprocess.Popen(
            [sys.executable, "-m", "paceline", *words],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            cwd=ROOT,
            env=environ,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def pid_of(self, rank: int) -> int | None:
        """The process of a rank; it leads a session of its own."""
        word = f"RANK={rank}".encode()
        return next((pid for pid, words in self._marked() if word in words and os.getsid(pid) == pid), None)

    def left(self) -> list[str]:
        """Processes that are still there, workers and whatever they and the launcher started, save the launcher."""
        return [command_of(pid) for pid, _ in self._marked() if pid != self.process.pid]

    def end(self) -> None:
        """Kill whatever a failed trial left, so that it cannot disturb the next one."""
        for pid, _ in self._marked():
            send(pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()

    def _marked(self) -> Iterator[tuple[int, list[bytes]]]:
        mark = f"{VARIABLE}={self._mark}".encode()
        for pid in pids():
            words = environ_of(pid)
            if mark in words and is_alive(pid):
                yield pid, words


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether a condition came to hold in time."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(STEP)
    return True


def send(pid: int, number: int) -> bool:
    """Whether there was a living process to send a signal to."""
    if not is_alive(pid):
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def children_of(pid: int) -> list[int]:
    return [child for child in pids() if _stat(child)[1:2] == [str(pid)]]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def is_alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def environ_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return str(pid)
    return f"{pid} {words.decode(errors='replace')[:100].strip()}"


def shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "paceline" in name}


def _stat(pid: int) -> list[str]:
    """State, parent and so on; nothing if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

"""How a worker ended badly, which of several was the cause, and how that is told."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import WorkerFailed

HINTS = {
    "SIGKILL": "the kernel does that when memory runs out, a person with kill -9",
    "SIGSEGV": "it crashed in native code",
    "SIGBUS": "it crashed in native code; a full /dev/shm does that",
    "SIGABRT": "native code gave up",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that ended badly; `seconds` after the start of the job. `signal` is a name or empty.

    `consequence` means that it says itself that it lost a peer: somebody else was first.
    """

    rank: int
    pid: int
    seconds: float
    exit_code: int | None = None
    signal: str = ""
    step: int | None = None
    error: str = ""
    traceback: str = ""
    consequence: bool = False

    @property
    def end(self) -> str:
        if self.signal:
            return f"was killed by {self.signal}"
        return "failed" if self.exit_code is None else f"ended with exit code {self.exit_code}"


def failure_of(
    rank: int, pid: int, status: int | None, *, seconds: float, folder: Path, last_words: str = ""
) -> Failure:
    """From how the process ended and what it wrote about it; `status` is None if it still runs."""
    told = _read(folder / f"rank-{rank}.failed.json")
    step, code = told.get("step"), told.get("exit_code")
    if status is not None:
        code = status if status > 0 else None
    return Failure(
        rank,
        pid,
        seconds,
        exit_code=code if isinstance(code, int) else None,
        signal=_name(-status) if status is not None and status < 0 else "",
        step=step if isinstance(step, int) and step >= 0 else None,
        error=str(told.get("error") or last_words).strip(),
        traceback=str(told.get("traceback") or ""),
        consequence="PeerLost" in (json.dumps(told) if told else last_words),
    )


def told_of(rank: int, folder: Path) -> bool:
    """Whether a rank has written about its failure."""
    return bool(_read(folder / f"rank-{rank}.failed.json"))


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The cause first: killed by a signal, then failed by itself, then failed because of others."""
    return sorted(failures, key=lambda failure: (not failure.signal, failure.consequence, failure.seconds))


def failed(failure: Failure, folder: Path, workers: int | None = None) -> WorkerFailed:
    """The error to raise; ranks from `workers` on are servers."""
    serves = workers is not None and failure.rank >= workers
    name = f"server {failure.rank - (workers or 0)}" if serves else f"rank {failure.rank}"
    step = "" if failure.step is None else f" at step {failure.step}"
    why = failure.error or HINTS.get(failure.signal, "it left no error text")
    # An error of ours ends with its own remedy, which is the better one.
    remedy = "" if ". try: " in failure.error else f"read {folder / f'rank-{failure.rank}.log'}"
    error = WorkerFailed(f"{name} (pid {failure.pid}) {failure.end}{step}", why=why, remedy=remedy)
    error.exit_code = 2 if failure.exit_code == 2 else 1
    return error


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

"""Failures of workers: how each worker ended, which failure was the cause, and the error that is raised for it.

cluster/job.py stops the other workers (`LocalJob.wait` and `stop`). In a job on several hosts, the agent of each host
runs such a job. cluster/restarts.py decides whether a worker is started again. In an elastic job,
elastic/coordinator.py forms a new group of the workers that are left.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.cluster.cause import shortened
from paceline.errors import WorkerFailed
from paceline.files.redact import redact

MOST_CALLS = 8  # ranks whose call is shown
LONGEST_CALL = 300  # bytes of a call that are shown
HINTS = {
    "SIGKILL": "the kernel does that when memory runs out, a person with kill -9",
    "SIGSEGV": "it crashed in native code",
    "SIGBUS": "it crashed in native code; a full /dev/shm does that",
    "SIGABRT": "native code gave up",
    "SIGTERM": "somebody asked it to end, a person with kill or a batch system",
    "SIGINT": "somebody interrupted it",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker that failed, `seconds` after the start of the job. `signal` is a name or empty.

    `consequence` means that it failed because it lost a peer, so another worker is the cause.
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
    host: str = ""

    @property
    def end(self) -> str:
        if self.signal:
            return f"was killed by {self.signal}"
        return "failed" if self.exit_code is None else f"ended with exit code {self.exit_code}"


def failure_of(
    rank: int,
    pid: int,
    status: int | None,
    *,
    seconds: float,
    folder: Path,
    last_words: str = "",
    secrets: Sequence[str] = (),
    host: str = "",
) -> Failure:
    """Describe a failure by the exit status and the worker's own report. `status` is None if it still runs.

    `secrets`, and everything that looks like a secret, are redacted from texts, because texts are printed and recorded.
    """
    report = _read(folder / f"rank-{rank}.failed.json")
    step, code = report.get("step"), report.get("exit_code")
    if status is not None:
        code = status if status > 0 else None
    return Failure(
        rank,
        pid,
        seconds,
        exit_code=code if isinstance(code, int) else None,
        signal=_name(-status) if status is not None and status < 0 else "",
        step=step if isinstance(step, int) and step >= 0 else None,
        error=redact(shortened(str(report.get("error") or last_words)), secrets),
        traceback=redact(str(report.get("traceback") or ""), secrets),
        consequence=_blames_others(json.dumps(report) if report else last_words),
        host=host,
    )


def _blames_others(text: str) -> bool:
    """Return whether an error text says that another rank was lost, or ended earlier than this one."""
    return "PeerLost" in text or "made more calls than" in text


def has_report(rank: int, folder: Path) -> bool:
    """Return whether a rank has written a report of its failure."""
    return bool(_read(folder / f"rank-{rank}.failed.json"))


def in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Sort the most likely cause first: killed by a signal, then failed by itself, then failed because of others."""
    return sorted(failures, key=lambda failure: (not failure.signal, failure.consequence, failure.seconds))


def failed(failure: Failure, folder: Path, workers: int | None = None) -> WorkerFailed:
    """Return the error to raise for a failure. Ranks from `workers` on are servers."""
    serves = workers is not None and failure.rank >= workers
    name = f"server {failure.rank - (workers or 0)}" if serves else f"rank {failure.rank}"
    step = "" if failure.step is None else f" at step {failure.step}"
    calls = calls_noted(folder) if failure.signal or failure.consequence else []
    why = "\n  ".join([failure.error or HINTS.get(failure.signal, "it left no error text"), *calls])
    # An error of paceline ends with its own remedy, which is more specific.
    remedy = "" if ". try: " in failure.error else f"read {folder / f'rank-{failure.rank}.log'}"
    where = f"{failure.host}, pid {failure.pid}" if failure.host else f"pid {failure.pid}"
    error = WorkerFailed(f"{name} ({where}) {failure.end}{step}", why=why, remedy=remedy)
    error.exit_code = 2 if failure.exit_code == 2 else 1
    return error


def calls_noted(folder: Path) -> list[str]:
    """Return the last call of each rank that wrote a file `rank-K.call`."""
    paths = {int(path.stem.removeprefix("rank-")): path for path in folder.glob("rank-*.call") if _has_rank(path)}
    calls = [(rank, text) for rank, path in sorted(paths.items()) if (text := _first_line(path))]
    shown = [f"last call of rank {rank}: {text}" for rank, text in calls[:MOST_CALLS]]
    return [*shown, *([f"and {len(calls) - MOST_CALLS} ranks more"] if len(calls) > MOST_CALLS else [])]


def _has_rank(path: Path) -> bool:
    return path.stem.removeprefix("rank-").isdecimal()


def _first_line(path: Path) -> str:
    """Return the first line of a file, up to LONGEST_CALL bytes, without zeros at its end."""
    try:
        with path.open("rb") as file:
            text = file.read(LONGEST_CALL)
    except OSError:
        return ""
    return text.partition(b"\n")[0].partition(b"\0")[0].decode("utf-8", "replace").strip()


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

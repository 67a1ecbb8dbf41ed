"""Submit a paceline command as a batch job of Slurm, show its output, and return its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from paceline.cluster.launchers.slurm import Slurm, check_tools
from paceline.cluster.stop_requests import ended_in_order
from paceline.errors import PacelineError, Stopped, WorkerFailed

LOOK = 1.0  # seconds between two questions to Slurm
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESIZING", "SUSPENDED")
ACTIVE = (*WAITING, "RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "STOPPED")


def submit(launcher: Slurm, arguments: Sequence[str], workers: int) -> int:
    """Run `paceline ARGUMENTS` as a batch job and return its exit code. A signal cancels the job."""
    check_tools()
    log = Path.cwd() / f"paceline-{os.getpid()}.out"
    command = [sys.executable, "-m", "paceline", *arguments]
    with tempfile.NamedTemporaryFile("w", suffix=".sh", prefix="paceline-") as script:
        script.write(launcher.script(command, workers, log))
        script.flush()
        number = _answer_of("sbatch", "--parsable", script.name).partition(";")[0]
    print(f"submitted as job {number} of Slurm; its output goes to {log}", flush=True)
    try:
        with ended_in_order():
            return _followed(number, log)
    except Stopped:
        _answer_of("scancel", number)
        raise


def _followed(number: str, log: Path) -> int:
    shown, last = 0, ""
    while True:
        state, code = state_of(number)
        shown = _show(log, shown)
        if state not in ACTIVE:
            break
        if state in WAITING and state != last:
            print(f"job {number} is {state.lower()}", flush=True)
        last = state
        time.sleep(LOOK)
    _show(log, shown)
    if state == "COMPLETED":
        return 0
    if state == "FAILED" and code > 0:
        return code
    why = {"CANCELLED": "somebody cancelled it", "TIMEOUT": "its time was over"}.get(state, f"Slurm says {state}")
    raise WorkerFailed(f"job {number} of Slurm did not end by itself", why=why, remedy=f"read {log}")


def _show(log: Path, start: int) -> int:
    """Print the log from byte `start` on. Return the number of bytes shown so far."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return start
    sys.stdout.write(data.decode("utf-8", "replace"))
    sys.stdout.flush()
    return start + len(data)


def state_of(number: str) -> tuple[str, int]:
    """Return the state of a job, and its exit code."""
    text = _answer_of("scontrol", "show", "job", "--oneliner", number)
    fields = dict(word.split("=", 1) for word in text.split() if "=" in word)
    code = fields.get("ExitCode", "0:0").partition(":")[0]
    return fields.get("JobState", "UNKNOWN"), int(code) if code.isdecimal() else 0


def _answer_of(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PacelineError(" ".join(words), why=done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout.strip()

"""Measure an elastic run in which one worker is killed on the way, and its replacement joins.

    steps  0 ........ KILL_AT ................................. goal
           |  N workers  | a worker gets SIGKILL; N - 1 go on; the launcher starts another one, which joins

The run is a process of its own, `paceline run --job FOLDER`. Its members write down what they compute and commit, and
the oracles judge that (elastic/oracles.py): samples that no committed step has used are lost. A run whose membership
has `min` equal to its workers is not disturbed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.elastic.journal import Journal
from paceline.elastic.nemesis import pid_of
from paceline.elastic.oracles import judge, read_ledger, uses
from paceline.elastic.status import ask
from paceline.errors import PacelineError, WorkerFailed
from paceline.measure.record.record import Record, make_folder, read
from paceline.race.keep import check_runs, save
from paceline.run.run import Run
from paceline.strategy import memberships

LEDGER = "PACELINE_LEDGER"  # see train/ledger.py
KILL_AT = 0.25  # share of the steps after which the worker is killed
PAUSE = 0.05  # seconds between two looks at the job
LAST = 10.0  # seconds in which a job ends that is asked to
LINES = 4  # last lines of a job that failed


def is_elastic(run: Run) -> bool:
    """Return whether members of a run may come and go."""
    return run.membership is not None and bool(memberships.MENU.make(run.membership).elastic)


def is_disturbed(run: Run) -> bool:
    """Return whether a worker of this run is killed."""
    return is_elastic(run) and memberships.MENU.make(str(run.membership)).min < run.workers


def keep_elastic(run: Run, runs: Path, *, race: Mapping[str, Any] | None = None) -> Record:
    """Measure an elastic run, and write its record with the number of samples that were lost or repeated."""
    check_runs(runs)
    folder = Path(tempfile.mkdtemp(prefix="paceline-disturbed-"))
    try:
        killed = _carry_out(run, folder)
        record = _judged(run, folder, killed)
    finally:
        shutil.rmtree(folder)
    make_folder(runs)
    record = record.model_copy(update={"race": dict(race or {})})
    return save(record, [], runs / f"{record.id}.json")


def _carry_out(run: Run, folder: Path) -> int:
    """Run the job to its end, and kill a worker if the run is disturbed. Return the pid of that worker, or 0."""
    words = [*shlex.split(run.text)[1:], "--job", str(folder / "job"), "--runs", str(folder / "runs")]
    with (folder / "output").open("w") as output:
        job = subprocess.Popen(
            [sys.executable, "-m", "paceline", *words, "--json", str(folder / "record.json")],
            env={**os.environ, LEDGER: str(folder)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            killed = _strike(job, folder / "job", goal_of(run)) if is_disturbed(run) else 0
            code = job.wait()
        finally:
            _end(job)
    if code:
        last = [line.strip() for line in (folder / "output").read_text().splitlines()[-LINES:]]
        raise WorkerFailed(f"an elastic run ended with exit code {code}", why=" ".join(last))
    return killed


def goal_of(run: Run) -> int:
    """Return the number of steps that a run without epochs makes."""
    return run.warmup + run.repeats * (run.steps or 10)


def _strike(
    job: subprocess.Popen[bytes], folder: Path, goal: int, look: Callable[[Path], dict[str, Any] | None] | None = None
) -> int:
    """Kill the last member when a part of the steps is made. Return its pid; 0 if the job ended before."""
    look = look or _look
    while job.poll() is None:
        state = look(folder)
        if state is not None and state["members"] and state["steps"] >= KILL_AT * goal:
            victim = pid_of(state["members"][-1])
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself
            return victim
        time.sleep(PAUSE)
    return 0


def _look(job: Path) -> dict[str, Any] | None:
    """Return the state of the job, or None while nobody answers."""
    try:
        return ask((job / "address").read_text().strip(), (job / "token").read_text())
    except (OSError, PacelineError):
        return None


def _end(job: subprocess.Popen[bytes]) -> None:
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(LAST)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()


def _judged(run: Run, folder: Path, killed: int) -> Record:
    """Return the record of the job with the verdict of its oracles."""
    journal = Journal(folder / "job" / "journal.db")
    try:
        groups, rollbacks = journal.groups(), journal.rollbacks()
    finally:
        journal.close()
    lines = read_ledger(folder)
    verdict = judge(lines, rollbacks)
    joined = len({member for group in groups[1:] for member in group.members} - set(groups[0].members))
    if is_disturbed(run) and not (killed and joined):
        raise WorkerFailed(
            f"{'nobody joined' if killed else 'no worker was killed'} before the run of {goal_of(run)} steps ended",
            remedy="a machine with less other work, or more steps",
        )
    if not (folder / "record.json").exists():
        raise WorkerFailed("an elastic run left no record", why="it was too short to have a rate", remedy="more steps")
    lost, repeated = uses(lines, rollbacks, goal_of(run))
    record = read(folder / "record.json")
    each = run.samples_per_step // memberships.MENU.make(str(run.membership)).shards
    part = {**record.elastic, "killed": int(killed > 0), "joined": joined}
    part |= {"lost": each * lost, "repeated": each * repeated}
    notes = [*record.notes, *verdict.problems]
    return record.model_copy(update={"elastic": part, "run": run, "text": run.text, "notes": notes})

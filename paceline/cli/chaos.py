"""paceline chaos: faults at random times against an elastic job, and the verdict of the oracles."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.elastic.journal import Journal
from paceline.elastic.nemesis import KINDS, Nemesis
from paceline.elastic.oracles import Judgement, judge, read_ledger
from paceline.elastic.progress import step_seconds
from paceline.elastic.recoveries import summary_of
from paceline.elastic.status import ask
from paceline.errors import PacelineError, WorkerFailed, WrongCommand
from paceline.strategy import memberships

LEDGER = "PACELINE_LEDGER"  # see train/ledger.py
SHOWN = 10  # problems that are printed


@app.command()
def chaos(
    context: typer.Context,
    workers: Annotated[int, typer.Option("-np", "--workers", min=2, help="Workers at the start.")] = 4,
    membership: Annotated[
        str, typer.Option("--membership", help="The elastic membership to test.")
    ] = "elastic(deterministic=true)",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the faults and of their times.")] = 0,
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="Stop the faults after this time.")] = 1.0,
    every: Annotated[float, typer.Option("--every", min=0.1, help="Mean seconds between two faults.")] = 3.0,
    kinds: Annotated[str, typer.Option("--kinds", help="Kinds of faults, separated by commas.")] = ",".join(KINDS),
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="First run the script without faults; then compare times, and final weights bit by bit.",
        ),
    ] = False,
) -> None:
    """Kill, stop, add and remove workers of a script at random, and judge the result. Give the script after --.

    When the script has ended, oracles check three things: every step was committed exactly once, every shard of a
    step was counted exactly once, and all members had bit-identical weights after every step.
    """
    argv, chosen = context.obj, [word.strip() for word in kinds.split(",") if word.strip()]
    if not argv:
        raise WrongCommand("nothing to start", remedy="paceline chaos -- python my_train.py")
    if unknown := [word for word in chosen if word not in KINDS]:
        raise WrongCommand(f"--kinds {','.join(unknown)}", why=f"known are {', '.join(KINDS)}", remedy="--kinds kill")
    if not chosen:
        raise WrongCommand("--kinds", why="no kind of fault is named", remedy="--kinds kill")
    members = memberships.MENU.make(membership)
    if not members.elastic:
        raise WrongCommand(f"--membership {membership}", why="its members never change", remedy="--membership elastic")
    calm = _fight(argv, workers, membership, None) if compare else None
    rough = _fight(argv, workers, membership, _Plan(seed, 60 * minutes, every, tuple(chosen)))
    _judge(rough, calm, same_bits=members.deterministic)


class _Plan:
    def __init__(self, seed: int, seconds: float, every: float, kinds: tuple[str, ...]) -> None:
        self.seed, self.seconds, self.every, self.kinds = seed, seconds, every, kinds


class _Seen:
    """The results of a job: its verdict, and its time from the first to the last commit."""

    def __init__(self, folder: Path, faults: list[Any], code: int) -> None:
        self.faults, self.code = faults, code
        journal = Journal(folder / "job" / "journal.db")
        try:
            self.verdict: Judgement = judge(read_ledger(folder), journal.rollbacks())
            self.incidents, self.rows = list(journal.incidents()), journal.history()
        finally:
            journal.close()
        self.seconds = self.rows[-1].at - self.rows[0].at if self.rows else 0.0


def _fight(argv: list[str], workers: int, membership: str, plan: _Plan | None) -> _Seen:
    """Run the script to its end, with faults or without."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    job = folder / "job"
    words = [sys.executable, "-m", "paceline", "run", "-np", str(workers), "--membership", membership]
    words += ["--restart", "always", "--job", str(job), "--", *argv]
    launcher = subprocess.Popen(words, env={**os.environ, LEDGER: str(folder)}, start_new_session=True)
    joined: list[subprocess.Popen[bytes]] = []
    try:
        faults = _strike(launcher, job, plan, argv, joined, folder) if plan is not None else []
        code = launcher.wait()
        for process in joined:
            process.wait(60)
        if not (job / "journal.db").exists():
            raise WorkerFailed("the job has ended before it began", why=f"its exit code is {code}")
        return _Seen(folder, faults, code)
    finally:
        _end([launcher, *joined])
        shutil.rmtree(folder)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _strike(
    launcher: subprocess.Popen[bytes],
    job: Path,
    plan: _Plan,
    argv: list[str],
    joined: list[subprocess.Popen[bytes]],
    ledger: Path,
) -> list[Any]:
    """Do faults until the job ends or the time is over; return them."""

    def join() -> int:
        address = (job / "address").read_text().strip()
        words = [sys.executable, "-m", "paceline", "join", address, "--token-file", str(job / "token"), "--", *argv]
        joined.append(subprocess.Popen(words, env={**os.environ, LEDGER: str(ledger)}, start_new_session=True))
        return joined[-1].pid

    nemesis = Nemesis(plan.seed, launcher=launcher.pid, join=join, kinds=plan.kinds)
    began = None
    due = 0.0
    while launcher.poll() is None:
        time.sleep(0.05)
        nemesis.thaw()
        for process in joined:
            process.poll()
        state = _look(job)
        if state is None or state["finished"] or not state["steps"]:
            continue
        now = time.monotonic()
        began = now if began is None else began
        if now - began > plan.seconds:
            break
        if now >= due:
            due = now + nemesis.pause(plan.every)
            fault = nemesis.strike(state)
            if fault is not None:
                what = f"{fault.kind} (pid {fault.pid}) after {state['steps']} steps, {fault.members} members"
                print(f"chaos: {what}", file=sys.stderr, flush=True)
    nemesis.thaw(now=float("inf"))
    return nemesis.faults


def _look(job: Path) -> dict[str, Any] | None:
    """Return the state of the job, or None while nobody answers."""
    try:
        return ask((job / "address").read_text().strip(), (job / "token").read_text())
    except (OSError, PacelineError):
        return None


def _judge(rough: _Seen, calm: _Seen | None, *, same_bits: bool) -> None:
    verdict, problems = rough.verdict, list(rough.verdict.problems)
    if rough.code:
        problems.append(f"the job ended with exit code {rough.code}")
    if calm is not None and same_bits and verdict.last != calm.verdict.last:
        problems.append("the bits at the end are not those of the undisturbed run")
    counts = Counter(fault.kind for fault in rough.faults)
    print(f"faults: {', '.join(f'{n} {kind}' for kind, n in sorted(counts.items())) or 'none'}")
    if summary := summary_of(rough.incidents):
        print(summary)
    step = _step_of(calm or rough)
    lost = rough.seconds - verdict.steps * step
    print(f"steps: {verdict.steps} committed in {rough.seconds:.1f} s; goodput {100 * verdict.goodput:.1f} %")
    against = "the undisturbed run" if calm is not None else "its own median step"
    share = max(0.0, lost) / rough.seconds if rough.seconds else 0.0
    print(f"time lost against {against}: {max(0.0, lost):.1f} s ({100 * share:.0f} %)")
    for problem in problems[:SHOWN]:
        print(f"VIOLATION: {problem}")
    if problems:
        raise WorkerFailed(f"{len(problems)} oracles are violated", why="a step must count once, with the same bits")
    compared = " and the final bits are those of the undisturbed run" if calm is not None and same_bits else ""
    print(f"verdict: every step was committed once, all members had the same bits{compared}")


def _step_of(seen: _Seen) -> float:
    return median(step_seconds(seen.rows) or [0.0])

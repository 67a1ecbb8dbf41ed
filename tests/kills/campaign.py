"""Kill workers, servers and launchers in every way and at every moment, and look for what is left.

    python -m tests.kills.campaign --kills 100 --seed 1
    python -m tests.kills.campaign --seed 1 --only 31        one of them again

After each kill: no process, no shared memory, no temporary folder but one that the output names, no namespace, no
control group, no damaged record, no traceback of ours, and the cause is named.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from paceline.cluster.lab.network import NAMESPACES
from paceline.cluster.lab.quota import find_tree
from paceline.errors import PacelineError
from paceline.measure.record.record import read
from tests.kills.scene import Scene, children_of, command_of, is_alive, send, shared_memory, until
from tests.kills.trials import Trial, trials

APPEARS = 40.0  # seconds for a target to be there
ENDS = 240.0  # seconds for a command to end after it was hit; a race goes on, and others may use the machine
GUARD = 5.0  # seconds for workers to end without their launcher
# a race names a rank that a signal has ended, and measures again what was lost
GOES_ON = "from now on in isolated starts: rank"
TRACEBACK = "Traceback (most recent call last)"
# __init__.py is loaded before any line of ours could handle a signal.
OURS = re.compile(r'File ".*/paceline/(?!__init__\.py)[\w/]+\.py"')


@dataclass
class Result:
    """`hit` is whether the target was still there when its signal was due."""

    trial: Trial
    hit: bool = False
    code: int | None = None
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    output: str = ""


def carry_out(trial: Trial) -> Result:
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    result, began = Result(trial), time.monotonic()
    scene = Scene(folder, trial.words(folder))
    try:
        result.hit, family = _strike(trial, scene)
        if not until(lambda: scene.process.poll() is not None, ENDS):
            result.problems.append(f"the launcher has not ended {ENDS:.0f} s later")
        result.code = scene.process.returncode
        if result.hit and not result.problems:
            result.problems += _problems(trial, scene, family, result.code)
    finally:
        result.output = scene.output
        scene.end()
        shutil.rmtree(folder, ignore_errors=True)
    result.seconds = time.monotonic() - began
    return result


def _strike(trial: Trial, scene: Scene) -> tuple[bool, list[int]]:
    """Whether the target was hit, and what the launcher had started by then, its guard too."""
    rank = {"worker": trial.rank, "server": 2}.get(trial.target)
    found: list[int] = [scene.process.pid]
    if rank is not None:
        ended = scene.process.poll
        until(lambda: ended() is not None or (found.__setitem__(0, scene.pid_of(rank) or 0) or found[0]), APPEARS)
    time.sleep(trial.delay)
    family = children_of(scene.process.pid)
    hit = bool(found[0]) and send(found[0], trial.signal)
    if hit and trial.after is not None:
        time.sleep(trial.pause)
        family += children_of(scene.process.pid)
        send(found[0], trial.after)
    return hit, family


def _problems(trial: Trial, scene: Scene, family: list[int], code: int | None) -> list[str]:
    return [
        *_processes(scene, family),
        *_named(trial, scene, code),
        *_own_traceback(trial, scene.output),
        *_damaged(scene.runs),
        *(f"/dev/shm/{name} is left" for name in sorted(shared_memory() - scene.shared_before)),
        *_left_on_disk(trial, scene),
    ]


def _processes(scene: Scene, family: list[int]) -> Iterator[str]:
    if not until(lambda: not scene.left() and not any(map(is_alive, family)), GUARD):
        left = {*scene.left(), *(command_of(pid) for pid in family if is_alive(pid))}
        yield f"processes are left: {', '.join(sorted(left))}"


def _named(trial: Trial, scene: Scene, code: int | None) -> Iterator[str]:
    """The exit code, and the cause in the output."""
    expected, words = _expected(trial, scene)
    if trial.target == "launcher" and TRACEBACK in scene.output and not OURS.search(scene.output):
        return  # Python itself was hit, before it had loaded anything of ours
    if code not in expected:
        yield f"exit code {code} instead of {' or '.join(map(str, expected))}"
    elif code in (1, 130, 143) and not any(word in _unwrapped(scene.output) for word in words):
        yield f"the output does not say {' or '.join(map(repr, words))}"


def _expected(trial: Trial, scene: Scene) -> tuple[tuple[int, ...], list[str]]:
    """Exit codes, and words of which one must be there. A command may end before a signal has an effect."""
    deadly = trial.deadly
    if deadly is None:
        return (0,), []
    if trial.target == "launcher":
        words = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}
        return (-deadly, *([128 + deadly] if deadly in words else [])), [words.get(deadly, "")]
    if trial.verb == "race" and GOES_ON in _unwrapped(scene.output):
        return (0,), []  # contenders that took turns are started again, each in processes of its own
    whom = f"rank {trial.rank} (" if trial.target == "worker" else "server 0 ("  # then host or pid
    whom = whom if trial.verb == "race" else f"error: {whom}"  # a race lists failures below its table
    if whom not in _unwrapped(scene.output):
        return (1,), [whom]
    return (1,), [deadly.name, "KeyboardInterrupt"] if deadly == signal.SIGINT else [deadly.name]


def _unwrapped(output: str) -> str:
    return " ".join(output.split())


def _own_traceback(trial: Trial, output: str) -> Iterator[str]:
    """A script that gets SIGINT prints its own, and so does Python before it has loaded anything of ours."""
    theirs = trial.verb == "script" and trial.signal == signal.SIGINT and trial.target != "launcher"
    if TRACEBACK in output and not theirs and OURS.search(output):
        yield "there is a traceback"


def _damaged(runs: Path) -> Iterator[str]:
    for path in runs.rglob("*.json") if runs.is_dir() else ():
        try:
            record = read(path)
            events = (path.with_name(record.events).read_text() if record.events else "").splitlines()
            for line in events:
                json.loads(line)
        except (PacelineError, ValueError, OSError) as problem:
            yield f"{path.name} is damaged: {problem}"
    for path in runs.rglob("race.plan") if runs.is_dir() else ():
        json.loads(path.read_text())


def _left_on_disk(trial: Trial, scene: Scene) -> Iterator[str]:
    """What a launcher that was killed could not take away goes with the next command."""
    if trial.target == "launcher" and trial.deadly == signal.SIGKILL:
        scene.start(["doctor"]).wait()
    named = "".join(scene.output.split())
    for path in scene.temporary.iterdir():
        if str(path) not in named:
            yield f"{path.name} is left among temporary files"
    owner = f"-{scene.process.pid}-"
    spaces = os.listdir(NAMESPACES) if NAMESPACES.is_dir() else []
    tree = find_tree() if trial.verb == "lab" else None
    groups = os.listdir(tree.home) if tree else []
    for name in (*spaces, *groups):
        if name.startswith("paceline-") and owner in name:
            yield f"namespace or control group {name} is left"


def campaign(kills: int, chosen: Iterable[Trial]) -> list[Result]:
    """Trials until so many have hit; those that came too late do not count, and are no more than as many again."""
    results: list[Result] = []
    with _interruptible():
        for trial in chosen:
            results.append(carry_out(trial))
            _tell(results[-1])
            if sum(one.hit for one in results) >= kills or len(results) >= 2 * kills:
                break
    return results


def carried_out(chosen: list[Trial]) -> list[Result]:
    with _interruptible():
        return [carry_out(trial) for trial in chosen]


@contextmanager
def _interruptible() -> Iterator[None]:
    """In the background of a shell SIGINT is ignored, and children inherit that; a person at a terminal has it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(result: Result) -> None:
    verdict = "too late" if not result.hit else "; ".join(result.problems) or "ok"
    print(f"{result.trial}: exit code {result.code}, {result.seconds:.1f} s: {verdict}", flush=True)
    if result.problems:
        for line in result.output.splitlines()[-25:]:
            print(f"    | {line}", flush=True)


def table(results: list[Result]) -> Iterator[str]:
    """Kills by command and target, one column per signal; failures in brackets."""
    columns = ["SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP"]
    hits = Counter((r.trial.verb, r.trial.target, r.trial.signal.name) for r in results if r.hit)
    wrong = Counter((r.trial.verb, r.trial.target, r.trial.signal.name) for r in results if r.problems)
    yield f"{'command':9}{'target':10}" + "".join(f"{name:>9}" for name in columns)
    for verb, target in sorted({(verb, target) for verb, target, _ in hits}):
        cells = [(hits[verb, target, name], wrong[verb, target, name]) for name in columns]
        yield f"{verb:9}{target:10}" + "".join(f"{f'{n} ({bad})' if bad else n:>9}" for n, bad in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill workers, servers and launchers; look for what is left.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, help="the number of a single trial")
    parser.add_argument("--verbs", default="run,race,script,lab")
    asked = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
    verbs = asked.verbs.split(",")
    if "lab" in verbs and os.geteuid() != 0:
        print("without labs: they need root", flush=True)
        verbs.remove("lab")
    began = time.monotonic()
    chosen = trials(seed, verbs)
    if asked.only:
        chosen, asked.kills = islice(chosen, asked.only - 1, asked.only), 1
    results = campaign(asked.kills, chosen)
    hits, wrong = sum(result.hit for result in results), sum(bool(result.problems) for result in results)
    print("", *table(results), sep="\n")
    print(f"seed {seed}: {hits} kills, {len(results) - hits} came too late, {wrong} failures, "
          f"{time.monotonic() - began:.0f} s")  # fmt: skip
    return 1 if wrong or hits < asked.kills else 0


if __name__ == "__main__":
    sys.exit(main())

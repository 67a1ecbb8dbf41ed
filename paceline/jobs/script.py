"""Any script on several workers: `paceline run -np 4 -- python my_train.py`, launched or measured.

A measured script leaves `steps-K.json` of each rank in the job's folder: the wrapper times the updates of its loop.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.bench.environment import capture
from paceline.bench.measure import PARTS
from paceline.compose import servers_of
from paceline.contenders import contenders_of
from paceline.errors import Refused, WrongCommand
from paceline.jobs.folder import job_folder
from paceline.jobs.measure import UPDATES, OnLine, make_record, period_of
from paceline.jobs.places import places_of
from paceline.jobs.suite import Suite
from paceline.launchers.local import Local
from paceline.record import Record
from paceline.run import CHOSEN, TO_LAUNCHER, TO_SCRIPTS, Run

TAKEN = (*TO_SCRIPTS, *TO_LAUNCHER)
BLOCKS = 5  # parts of the measured updates that a rate inside one start is taken of


def launch(
    argv: Sequence[str],
    *,
    run: Run,
    choices: Mapping[str, Any],
    servers: int = 0,
    on_line: OnLine | None = None,
) -> None:
    """Start the script on every worker; what was chosen on the command line reaches `join` and `wrap`."""
    with job_folder() as folder:
        _start(argv, folder, run, choices=choices, servers=servers, on_line=on_line)


def _start(
    argv: Sequence[str],
    folder: Path,
    run: Run,
    *,
    choices: Mapping[str, Any],
    servers: int,
    on_line: OnLine | None,
    measured: bool = False,
) -> None:
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    environ = {**os.environ, "PACELINE_CHOICES": json.dumps(dict(choices))}
    if measured:
        environ["PACELINE_MEASURE"] = "1"
    if run.threads:
        environ["OMP_NUM_THREADS"] = str(run.threads)
    with (
        places_of(run) as places,
        Local().start(
            argv,
            workers=run.workers,
            servers=servers,
            folder=folder,
            environ=environ,
            prefix=run.workers > 1,
            on_line=on_line,
            place=places.place,
        ) as job,
    ):
        job.wait()


def script_suite(suite: Suite, argv: Sequence[str]) -> Suite:
    """The suite of a race of a script: one heat per number of workers; model and batch are the script's own."""
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    _refuse_foreign(suite.contenders)
    common = {name: value for name, value in suite.common.items() if name in TAKEN}
    values = suite.model_dump(exclude_unset=True, exclude={"published"})  # figures of another model
    # Any listed model will do: nothing of it is built, and the record names the script instead.
    return Suite.model_validate({**values, "models": ["mlp"], "batch_sizes": [1], "run": common})


def left_out(suite: Suite) -> list[str]:
    """What a suite says and a script decides itself."""
    said = [name for name in ("models", "batch_sizes") if name in suite.model_fields_set]
    return [*said, *(f"run.{name}" for name in suite.common if name not in TAKEN)]


def _refuse_foreign(contenders: Sequence[str]) -> None:
    """What does not reach a script would be timed without it and recorded with it."""
    problems = [
        str(
            WrongCommand(
                f"contender {contender.label}: {name}={value} with a script",
                why=f"the script sets its {name.replace('_', ' ')} itself",
                remedy=f"leave it out, or race a script that sets it; a contender takes {', '.join(TAKEN)}",
            )
        )
        for contender in contenders_of(contenders)
        for name, value in contender.choices
        if name not in TAKEN
    ]
    if problems:
        raise Refused(problems)


def _given(run: Run, names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(run, name)) != Run.model_fields[name].default}


def command_of(argv: Sequence[str], run: Run) -> str:
    """The race that starts a script with the choices of a run again; the baseline is in every race."""
    axes = _given(run, CHOSEN)
    parts = [run.strategy] if run.strategy else []
    parts += [f"{name}={value}" for name, value in axes.items() if name != "strategy"]
    # Without an axis the script's own strategy runs: a contender that changes nothing leaves it so.
    contender = ",".join(parts) or f"comm={run.comm}"
    words = ["paceline", "race", "-np", str(run.workers)]
    words += [] if run.reference and run.workers == 1 else ["--contender", contender]
    for name, value in _given(run, [name for name in TAKEN if name not in CHOSEN]).items():
        words += [f"--{name}", str(value)]
    return shlex.join([*words, "--", *argv])


def run_of(argv: Sequence[str], run: Run, batch: int | None = None) -> Run:
    """The run as its record tells it: the script's words stand for the model."""
    return run.with_(model=shlex.join(argv), batch_size=batch)


def script_of(record: Record) -> list[str]:
    """The script that a record is of; nothing if it is of a run."""
    try:
        words = shlex.split(record.text)
    except ValueError:
        return []
    return words[words.index("--") + 1 :] if "--" in words else []


def measure_script(argv: Sequence[str], run: Run) -> tuple[Record, list[list[Any]]]:
    """The record of one start of a script with the choices of a run."""
    with job_folder() as folder:
        _start(
            argv,
            folder,
            run,
            servers=servers_of(run),
            choices=_given(run, TO_SCRIPTS),
            on_line=lambda *_: None,
            measured=True,
        )
        ranks = [_seen(folder, rank, argv) for rank in range(run.workers)]
    count = min(len(rank["steps"]) for rank in ranks)
    ranks = [_in_blocks(rank, count, period_of(run)) for rank in ranks]
    told = {"run": run_of(argv, run, ranks[0]["batch"] or None), "text": command_of(argv, run)}
    return make_record(run, [], ranks).model_copy(update=told), [[] for _ in ranks]


def _seen(folder: Path, rank: int, argv: Sequence[str]) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / f"steps-{rank}.json").read_text()))
    except OSError:
        raise WrongCommand(
            f"{shlex.join(argv)} measured nothing",
            why=f"rank {rank} left no times: it has not called pace.step(), or ended without an orderly exit",
            remedy="pace = paceline.wrap(model, optimizer), and pace.step() in the loop",
        ) from None


def _in_blocks(rank: dict[str, Any], count: int, period: int = 1) -> dict[str, Any]:
    """Updates of a loop as a run has them: some for warm-up, the rest in blocks of equal length."""
    warm = min(5, count // 3)
    blocks, length = _cut(count - warm, period)
    stop = warm + blocks * length
    steps = rank["steps"][warm:stop]
    parts = {name: rank["parts"].get(name, [0.0] * stop)[warm:stop] for name in PARTS}
    seconds = [sum(steps[k * length : (k + 1) * length]) for k in range(blocks)]
    samples = (rank["batch"] or 1) * length
    return {
        **rank,
        "environment": capture(),
        "warmup": rank["steps"][:warm],
        "steps": steps,
        "seconds": seconds,
        "parts": parts,
        "samples": samples,
        "unit": "sample" if rank["batch"] else UPDATES,
    }


def _cut(count: int, period: int) -> tuple[int, int]:
    """How many blocks of how many updates: whole periods of a rule, and as many of them as there are."""
    periods = count // period
    if period == 1 or not periods:
        blocks = max(1, min(BLOCKS, count // 2))
        return blocks, count // blocks
    blocks = max(range(min(2, periods), min(BLOCKS, periods) + 1), key=lambda n: (n * (periods // n), n))
    return blocks, periods // blocks * period

"""Launch or measure any script on several workers: `paceline run -np 4 -- python my_train.py`.

Each rank of a measured script writes `steps-K.json` to the job's folder, with the times of its updates; see
script_record.py.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.cluster.job import LocalJob
from paceline.cluster.job_folder import job_folder
from paceline.cluster.launchers.local import Local
from paceline.cluster.launchers.ssh import Ssh
from paceline.cluster.restarts import DEFAULT, Restarts
from paceline.elastic.frames import ABSENT
from paceline.elastic.launch import CHOICES, FOLDER, RUN, coordinator_command, kept_folder, write_spec
from paceline.errors import PacelineError, Refused, WrongCommand
from paceline.measure.busy import Usage
from paceline.measure.combining import failed_record
from paceline.measure.communication import TASK_BATCHES
from paceline.measure.elastic_record import elastic_record
from paceline.measure.measure import OnLine
from paceline.measure.places import launcher_of, places_of
from paceline.measure.record.rank_report import BEGAN
from paceline.measure.record.record import Record
from paceline.menu.grammar import parse
from paceline.race.contenders import contenders_of
from paceline.race.script_record import TAKEN, command_of, record_of, run_of, settings_of
from paceline.race.suite import Suite
from paceline.run.compose.compose import servers_of
from paceline.run.run import TO_SCRIPTS, Run, hosts_of
from paceline.types import Seat

# What every worker of an elastic job imports; the last ones would be imported with the first optimizer and step.
IMPORTED = (
    "torch",
    "torch._dynamo",
    "paceline.api.elastic",
    "paceline.run.compose.compose",
    "sqlite3",
    "encodings.idna",
)
NOTHING = "no rank has made an update with pace.step(), or none ended in an orderly way"


def launch(
    argv: Sequence[str],
    *,
    run: Run,
    choices: Mapping[str, Any],
    servers: int = 0,
    on_line: OnLine | None = None,
    elastic: Any = None,
    trained: Run | None = None,
) -> Record | None:
    """Start the script on every worker, and pass the settings of the command line on to `join` and `wrap`.

    `elastic` is the membership of an elastic job, which gets a coordinator; the record of such a job is returned.
    `trained` is the run that the script reads from the folder of the job, if the script is paceline's own.
    """
    with job_folder() as folder:
        _start(argv, folder, run, choices=choices, servers=servers, on_line=on_line, elastic=elastic, trained=trained)
        journal = _elastic_folder(run, folder) / "journal.db"
        shown, text = (run_of(argv, run), command_of(argv, run)) if trained is None else (run, run.text)
        comm = parse(_elastic_comm(run)).word
        return elastic_record(shown, journal, text=text, comm=comm) if journal.exists() else None


def _elastic_folder(run: Run, folder: Path) -> Path:
    return Path(run.job).absolute() if run.job else folder / "elastic"


def _start(
    argv: Sequence[str],
    folder: Path,
    run: Run,
    *,
    choices: Mapping[str, Any],
    servers: int,
    on_line: OnLine | None,
    measured: bool = False,
    elastic: Any = None,
    trained: Run | None = None,
) -> Path:
    """Run the script to its end; return the folder with the files that its ranks left."""
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    if elastic is not None:
        choices = {**choices, "comm": _elastic_comm(run)}
    environ = {**os.environ, "PACELINE_CHOICES": json.dumps(dict(choices))}
    if measured:
        environ["PACELINE_MEASURE"] = "1"
    if run.threads:
        environ["OMP_NUM_THREADS"] = str(run.threads)
    launcher = launcher_of(run)
    here = elastic is not None and isinstance(launcher, Local)  # the coordinator is started on this machine
    if here:
        kept = kept_folder(_elastic_folder(run, folder))
        environ[FOLDER] = str(kept)
        (kept / CHOICES).write_text(environ["PACELINE_CHOICES"])
        if trained is not None:
            (kept / RUN).write_text(trained.model_dump_json())
    elif elastic is not None:
        _tell_agents(run, folder, elastic, launcher)
    with places_of(run) as places:
        launcher.check(places.seats)
        forks = {"modules": IMPORTED} if here else {}
        with launcher.start(
            argv,
            workers=run.workers,
            servers=servers,
            folder=folder,
            environ=environ,
            prefix=run.workers > 1,
            on_line=on_line,
            seats=places.seats,
            **forks,
        ) as job:
            if here:
                assert isinstance(job, LocalJob)
                _coordinate(job, run, Path(environ[FOLDER]), environ, elastic, places.seats[0])
            job.wait()
        return job.results()


def _elastic_comm(run: Run) -> str:
    """Return the comm of an elastic job: shared memory on one host, sockets between hosts."""
    return run.comm if run.comm != "auto" else "tcp" if run.lab or hosts_of(run) else "shm"


def _tell_agents(run: Run, folder: Path, elastic: Any, launcher: Any) -> None:
    """Have the agent of the first host start the coordinator; the other agents learn how to restart workers."""
    if not isinstance(launcher, Ssh):
        raise WrongCommand(f"--launcher {run.launcher} with membership {elastic}", remedy="--launcher local, or ssh")
    if run.job:
        raise WrongCommand(f"--job {run.job} beside hosts", why="the journal is on the first host", remedy="omit --job")
    write_spec(folder, **_numbers(run, elastic), restart=run.restart or DEFAULT)


def _numbers(run: Run, elastic: Any) -> dict[str, int]:
    """Return the numbers that the coordinator of an elastic job needs."""
    task = run.batches_per_task or TASK_BATCHES
    return {"start": run.workers, "least": elastic.min, "most": elastic.max, "task": task}


def _coordinate(job: LocalJob, run: Run, folder: Path, environ: Mapping[str, str], elastic: Any, first: Seat) -> None:
    """Start the coordinator beside the workers, in a lab on its first host, and restart workers that die."""
    job.restarts = Restarts(run.restart or DEFAULT, always=frozenset({run.workers}))
    job.on_gone = lambda rank: (folder / f"{ABSENT}-{rank}").touch()
    rule = "tcp" if parse(_elastic_comm(run)).word == "tcp" else "shm"
    interface = first.host.address if run.lab else "127.0.0.1"
    command = coordinator_command(folder, **_numbers(run, elastic), rule=rule, interface=interface)
    prefix = first.place.prefix if run.lab else ()
    job.launch(run.workers, [*prefix, *command], environ, host="coordinator")


def script_suite(suite: Suite, argv: Sequence[str]) -> Suite:
    """Return the suite for a race of a script: one heat per number of workers, with the script's model and batch."""
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    _refuse_foreign(suite.contenders)
    common = {name: value for name, value in suite.common.items() if name in TAKEN}
    values = suite.model_dump(exclude_unset=True, exclude={"published"})  # published figures belong to another model
    # Any listed model will do: it is not built, and the record names the script instead.
    return Suite.model_validate({**values, "models": ["mlp"], "batch_sizes": [1], "run": common})


def left_out(suite: Suite) -> list[str]:
    """Return the settings of a suite that have no effect because the script decides them."""
    ignored = [name for name in ("models", "batch_sizes") if name in suite.model_fields_set]
    return [*ignored, *(f"run.{name}" for name in suite.common if name not in TAKEN)]


def _refuse_foreign(contenders: Sequence[str]) -> None:
    """Raise for settings that do not reach a script, because the record would name them without effect."""
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


def launch_measured(
    argv: Sequence[str],
    *,
    run: Run,
    choices: Mapping[str, Any],
    servers: int = 0,
    chosen: Collection[str] = (),
    keep: Callable[[Record], None],
) -> str:
    """Start the script like `launch`, and pass the record of its updates to `keep`, also if the script fails.

    Return why there is no record, or an empty text. A script that trains nothing with paceline has none.
    """
    usage = Usage()
    with job_folder() as folder:
        try:
            results = _start(argv, folder, run, choices=choices, servers=servers, on_line=None, measured=True)
        except PacelineError as problem:
            if any(folder.glob(f"{BEGAN}-*")):
                shown, text = run_of(argv, run), command_of(argv, run, chosen)
                with suppress(PacelineError):  # report the failure of the script, even if the disk is full
                    keep(failed_record(shown, str(problem), text=text))
            raise
        usage.stop()
        if not any(results.glob("steps-*.json")):
            return NOTHING
        try:
            record = record_of(argv, run, results, usage, chosen)
        except WrongCommand as problem:
            return str(problem)
    keep(record)
    return ""


def measure_script(argv: Sequence[str], run: Run) -> tuple[Record, list[list[Any]]]:
    """Start a script once with the settings of a run; return its record and events."""
    usage = Usage()
    with job_folder() as folder:
        results = _start(
            argv,
            folder,
            run,
            servers=servers_of(run),
            choices=settings_of(run, TO_SCRIPTS),
            on_line=lambda *_: None,
            measured=True,
        )
        usage.stop()
        record = record_of(argv, run, results, usage)
    return record, [[] for _ in range(run.workers)]

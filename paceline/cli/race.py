"""paceline race: contenders side by side on this machine, and the verdict."""

from __future__ import annotations

import importlib
import json as jsons
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from paceline.cli import app
from paceline.cli import options as o
from paceline.errors import WrongCommand
from paceline.record import check_writable, write

# What answers within two minutes: few steps, no round that would end after them, and no more of the baseline and the
# limit than a scaling needs, because most of a start is importing torch.
QUICK = {"rounds": 5, "reference_rounds": 3, "minutes": 1.9, "steps": 3, "warmup": 2, "repeats": 2}
QUICK_WATCHED = 1  # steps whose events are kept
QUICK_BATCH = 16
USUAL_STARTS = 4  # of a round: one worker, limit, ddp, allreduce
USUAL = {"rounds": 5, "steps": 5, "warmup": 3, "repeats": 3}


@app.command()
def race(
    context: typer.Context,
    strategies: Annotated[
        str | None, typer.Option("--strategies", help="Contenders by name: allreduce,wfbp. [default: allreduce]")
    ] = None,
    contender: Annotated[
        list[str] | None,
        typer.Option("--contender", help="One more: 'allreduce,schedule=wfbp', 'rule=atc,exchange=neighbor(ring)'."),
    ] = None,
    suite: Annotated[str | None, typer.Option("--suite", help="A race as a TOML file, or a shipped one.")] = None,
    workers: Annotated[str | None, typer.Option("-np", "--workers", help="Workers: 2, or 1,2,4. [default: 2]")] = None,
    model: Annotated[str | None, typer.Option("--model", "--models", help="One or several, with commas.")] = None,
    batch_size: Annotated[
        str | None, typer.Option("--batch-size", "--batch", help="Samples per worker: 64, or 16,64.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few steps, batch 16, and no round that would end after two minutes.")
    ] = False,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Fresh starts of each contender. [default: 5]")] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="No round starts that would end after so many.")
    ] = None,
    classes: o.Classes = None,
    image_size: o.ImageSize = None,
    sequence_length: o.SequenceLength = None,
    source: o.SourceText = o.DEFAULTS.source,
    optimizer: o.OptimizerText = o.DEFAULTS.optimizer,
    memory_format: o.MemoryFormat = o.DEFAULTS.memory_format,
    precision: o.Precision = o.DEFAULTS.precision,
    compile: o.Compile = False,
    accumulate: o.Accumulate = o.DEFAULTS.accumulate,
    clip_norm: o.ClipNorm = None,
    compute: o.Compute = o.DEFAULTS.compute,
    comm: o.CommName = o.DEFAULTS.comm,
    nodes: o.Nodes = None,
    profile: o.ProfileFile = None,
    lab: o.LabText = None,
    cpus: o.Cpus = None,
    deadline: o.Deadline = o.DEFAULTS.deadline,
    steps: o.Steps = None,
    warmup: Annotated[int | None, typer.Option("--warmup", help="Updates before the clock starts.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", help="Measured blocks of --steps in a start.")] = None,
    seed: o.Seed = o.DEFAULTS.seed,
    threads: o.Threads = None,
    runs: o.Runs = Path("runs"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, also if the same race is unfinished.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run rounds with a failed cell again, and missing ones.")
    ] = False,
    json: o.JsonFile = None,
) -> None:
    """Race strategies on this machine: fresh processes, interleaved, with intervals and a verdict.

    The one-worker baseline, limit and ddp always take part. Without flags: mobilenet_v2 on 32x32 images, 32 samples
    for each of two workers. Started again after an interruption, the same race keeps what is finished. Your own
    training script: paceline race --strategies allreduce,wfbp -- python my_train.py
    """
    from paceline.cli.race_view import View, as_json, closing
    from paceline.jobs.keep import check_runs
    from paceline.jobs.race import check_places
    from paceline.jobs.race import race as run_race
    from paceline.jobs.racefolder import open_folder

    plan = _plan(context, dict(locals()))
    if json is not None:
        check_writable(json)
    check_runs(runs)
    check_places(plan)
    folder, known = open_folder(plan, runs, fresh=fresh, retry=retry)
    _greet(plan, folder, known)
    if quick:
        _no_promise(context, plan)
    with View() as view:
        result = run_race(plan, folder, measured=_measured(plan, quick), watcher=view, retry=retry)
    for line in closing(result):
        print(line)
    print(f"\nrecords: {folder.path}")
    _report(result)
    if json is not None:
        write(json, jsons.dumps(as_json(result), indent=1) + "\n")
    if result.failures:
        raise typer.Exit(1)


def _plan(context: typer.Context, values: dict[str, Any]) -> Any:
    """The suite that the flags describe: a file's, with every flag on the command line in its place."""
    from paceline.jobs.cells import plan
    from paceline.jobs.script import left_out, script_suite
    from paceline.jobs.suite import Suite, read_suite

    given = {name: values[name] for name in values if _was_given(context, name)}
    asked = read_suite(values["suite"]) if values["suite"] else Suite.model_validate(_defaults(given))
    script = list(context.obj or ())
    ignored = left_out(asked) if script and values["suite"] else []
    changes, common = _changes(given), {name: given[name] for name in _COMMON if name in given}
    if values["quick"]:
        usual = {name: QUICK[name] for name in ("rounds", "reference_rounds", "minutes")}
        changes = {**usual, **({} if values["suite"] else {"batch_sizes": [QUICK_BATCH]}), **changes}
        common = {name: QUICK[name] for name in ("steps", "warmup", "repeats")} | common
    try:
        asked = Suite.model_validate({**asked.model_dump(exclude_unset=True), **changes, "run": asked.common | common})
    except ValidationError as problem:
        first = problem.errors()[0]
        flag = "--" + str(first["loc"][-1]).replace("_", "-")
        raise WrongCommand(f"{flag} {first['input']}", why=str(first["msg"])) from None
    if script:
        _nothing_of_the_script(given)
        asked = script_suite(asked, script)
    if ignored:
        print(f"note: the script chooses model, data and steps itself; not used: {', '.join(ignored)}", file=sys.stderr)
    return plan(asked, script=script)


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """What flags say about the race itself."""
    from paceline.contenders import split

    changes: dict[str, Any] = {name: given[name] for name in ("rounds", "minutes", "seed") if name in given}
    kinds = {"models": ("model", str), "workers": ("workers", int), "batch_sizes": ("batch_size", int)}
    for field, (flag, kind) in kinds.items():
        if flag in given:
            changes[field] = [_whole(flag, word, kind) for word in split(given[flag])]
    named = [*split(given.get("strategies", "")), *given.get("contender", ())]
    if named:
        changes["contenders"] = named
    _at_least_one(changes)
    return changes


_COMMON = (
    *("classes", "image_size", "sequence_length", "source", "optimizer", "memory_format", "precision", "nodes"),
    *("compile", "accumulate", "clip_norm", "compute", "comm", "profile", "lab", "cpus", "deadline"),
    *("steps", "warmup", "repeats", "threads"),
)


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The race without flags; a model of the user's own choice gets no image size of ours, nor do files."""
    common = {name: USUAL[name] for name in ("steps", "warmup", "repeats")}
    own = "model" in given or not given.get("source", o.DEFAULTS.source).startswith("fake")
    return {"rounds": USUAL["rounds"], "run": common if own else {**common, "image_size": 32}}


def _whole(flag: str, word: str, kind: type) -> Any:
    try:
        return kind(word)
    except ValueError:
        name = {"workers": "-np"}.get(flag, "--" + flag.replace("_", "-"))
        raise WrongCommand(f"{name} {word}", why="it takes whole numbers, with commas between", remedy="1,2") from None


def _at_least_one(changes: dict[str, Any]) -> None:
    checks = {"rounds": ("--rounds", "round"), "workers": ("-np", "worker"), "batch_sizes": ("--batch-size", "sample")}
    for name, (flag, unit) in checks.items():
        for value in changes.get(name, []) if name != "rounds" else [changes.get("rounds", 1)]:
            if value < 1:
                raise WrongCommand(f"{flag} {value}", why=f"at least 1 {unit} is needed")


def _nothing_of_the_script(given: dict[str, Any]) -> None:
    from paceline.jobs.script import TAKEN

    foreign = [name for name in (*_COMMON, "model", "batch_size") if name in given and name not in TAKEN]
    if foreign:
        flags = ", ".join("--" + name.replace("_", "-") for name in foreign)
        raise WrongCommand(
            f"{flags} with a script", why="the script chooses model, data and steps itself", remedy="leave it out"
        )


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _no_promise(context: typer.Context, plan: Any) -> None:
    """Two minutes are promised for the race without other flags only."""
    from paceline.cli.race_view import wrapped

    longer = any(_was_given(context, name) for name in (*_COMMON, "suite", "model", "batch_size", "workers"))
    starts = sum(cell.round == 1 for cell in plan.cells)
    if not plan.script and not longer and starts <= USUAL_STARTS:
        return
    each = "each as long as the script" if plan.script else "however long they take"
    for line in wrapped(
        f"note: the first round always runs, {starts} fresh starts, {each}; no other begins that would end after "
        f"{plan.suite.minutes:g} minutes"
    ):
        print(line, flush=True)


def _measured(plan: Any, quick: bool) -> Any:
    from paceline.jobs.measure import WATCHED
    from paceline.jobs.race import Measured
    from paceline.jobs.script import measure_script

    if plan.script:
        return lambda cell: measure_script(plan.script, cell.run)
    return Measured(watched=QUICK_WATCHED if quick else WATCHED)


def _greet(plan: Any, folder: Any, known: bool) -> None:
    from paceline.cli.race_view import public, wrapped

    if plan.suite.title:
        print(public(plan.suite.title), flush=True)
    labels = list(dict.fromkeys(public(entry.label) for entry in plan.entries))
    what = "; ".join(public(plan.title(heat)) for heat in plan.heats)
    print(f"{', '.join(labels)}\n{plan.suite.rounds} round(s), {len(plan.cells)} fresh starts: {what}", flush=True)
    for note in (*plan.suite.notes, *plan.notes):
        for line in wrapped(f"note: {note}"):
            print(line, flush=True)
    if known:
        print(f"going on with {folder.path}; --fresh starts anew", flush=True)
        for path, why in folder.damaged(plan):
            print(f"{path.name} is damaged ({why}): its cell runs again", flush=True)


def _report(result: Any) -> None:
    """The page about the race, where this paceline can make one."""
    try:
        page = importlib.import_module("paceline.report.page")
    except ModuleNotFoundError:
        return
    path = result.folder.path / "report.html"
    page.write_report(list(result.records.values()), path)
    print(f"report: {path}")

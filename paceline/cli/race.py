"""paceline race: race contenders on this machine, and print the verdict."""

from __future__ import annotations

import importlib
import json as jsons
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.submit import hand_over
from paceline.errors import Stopped, WrongCommand, short
from paceline.measure.record.record import check_writable, write
from paceline.run.fields import Panel
from paceline.run.run import GRID, Run, about, flag_of, flags_of

# Two minutes, including the start that runs when the time is up.
QUICK = {"minutes": 1.7, "reference_rounds": 1, "half_width": 100.0, "warmup": 2}
QUICK_WATCHED = 1  # steps whose events are kept
USUAL = {"steps": 2, "warmup": 2, "repeats": 4}
USUAL_MODELS = ["resnet50", "mobilenet_v2"]  # one that computes much, and one that exchanges much
USUAL_CONTENDERS = ["allreduce", "wfbp"]
USUAL_BATCH = 16
LISTED = ("workers", "model", "batch_size")  # a race takes a list of each
COMMON = tuple(name for name in Run.model_fields if name not in GRID and about(name).race == "common")


def _in_panel(panel: Panel, flag: str, help: str, default: str = "") -> Any:
    text = f"{help}  [default: {default}]" if default else help
    return typer.Option(flag, help=text, rich_help_panel=panel.value)


@app.command()
@o.takes_run(
    (*LISTED, *COMMON, "seed"),
    workers=o.Changed(str | None, "Numbers of workers: 2, or 1,2,4.", "2"),
    model=o.Changed(
        str | None, "Models, separated by commas; see paceline models.", "resnet50,mobilenet_v2", None, ("--models",)
    ),
    batch_size=o.Changed(str | None, "Samples per worker in one backward pass: 64, or 16,64.", "16"),
    steps=o.Changed(unset="2"),
    warmup=o.Changed(int | None, unset="2"),
    repeats=o.Changed(
        int | None,
        "How many turns each contender takes before the processes are started anew.",
        "chosen from the variation between starts",
    ),
)
def race(
    context: typer.Context,
    *,
    strategies: Annotated[
        str | None,
        _in_panel(Panel.TRAVEL, "--strategies", "Names of strategies to race, separated by commas.", "allreduce,wfbp"),
    ] = None,
    contender: Annotated[
        list[str] | None,
        _in_panel(
            Panel.TRAVEL,
            "--contender",
            "One more contender, as a strategy and settings: 'allreduce,schedule=wfbp'; or as settings only: "
            "'rule=atc,exchange=neighbor(ring)'.",
        ),
    ] = None,
    suite: Annotated[
        str | None, _in_panel(Panel.TRAVEL, "--suite", "Race a suite: a TOML file, or the name of an included suite.")
    ] = None,
    quick: Annotated[
        bool, _in_panel(Panel.LENGTH, "--quick", "Answer within about two minutes, or say why not.")
    ] = False,
    rounds: Annotated[
        int | None,
        _in_panel(
            Panel.LENGTH,
            "--rounds",
            "Run exactly this many rounds. Each round starts every contender once.",
            "until all are decided",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        _in_panel(
            Panel.LENGTH,
            "--minutes",
            "Time limit for each combination of model, batch size and number of workers. The first round always "
            "runs. A later round starts only if it is expected to end in time.",
            "3",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        _in_panel(
            Panel.LENGTH,
            "--margin",
            "Two contenders tie if it is certain that they differ by less than this many percent.",
            "3",
        ),
    ] = None,
    half_width: Annotated[
        float | None,
        _in_panel(
            Panel.LENGTH,
            "--half-width",
            "Continue until the ratio of the best contender to ddp is known to plus or minus this many percent.",
            "5",
        ),
    ] = None,
    isolated: Annotated[
        bool,
        _in_panel(
            Panel.LENGTH,
            "--isolated",
            "Start every contender in its own processes; do not let contenders take turns in shared ones.",
        ),
    ] = False,
    values: dict[str, Any],
    runs: o.Runs = Path("runs"),
    fresh: Annotated[
        bool, _in_panel(Panel.OUTPUT, "--fresh", "Start from the beginning, even if the same race is unfinished.")
    ] = False,
    retry: Annotated[
        bool, _in_panel(Panel.OUTPUT, "--retry", "Repeat the rounds in which a start failed or is missing.")
    ] = False,
    log_to: Annotated[
        str | None,
        _in_panel(Panel.OUTPUT, "--log-to", "Send the scalars of every record to wandb or mlflow at the end."),
    ] = None,
    json: o.JsonFile = None,
) -> None:
    """Race strategies on this machine: they take turns in the same processes, until the winner is certain.

    Three references always take part: one worker alone, `limit` (no communication) and `ddp` (PyTorch's
    DistributedDataParallel). Without flags the models are resnet50 and mobilenet_v2, on 32x32 images, with 16 samples
    for each of two workers. To continue a race that was interrupted or is still undecided, run the same command again.
    To race your own training script:
    paceline race --strategies allreduce,wfbp -- python my_train.py
    """
    from paceline.cli.race_view import RaceView, as_json, closing
    from paceline.race.folder import open_folder
    from paceline.race.keep import check_runs
    from paceline.race.race import check_places
    from paceline.race.race import race as run_race
    from paceline.run.compose.flags import check_variables
    from paceline.run.own_model import check_own_models

    own = {"strategies": strategies, "contender": contender, "suite": suite, "rounds": rounds, "minutes": minutes}
    plan = _plan(
        context, {**values, **own, "margin": margin, "half_width": half_width, "isolated": isolated, "quick": quick}
    )
    if json is not None:
        check_writable(json)
    if log_to is not None:
        from paceline.report.trackers import check_tracker

        check_tracker(log_to)
    check_runs(runs)
    hand_over(values["launcher"], max(cell.run.workers for cell in plan.cells))
    check_places(plan)
    if not plan.script:
        check_variables(plan.cells[0].run, os.environ)
        check_own_models(cell.run for cell in plan.cells)
    folder, known = open_folder(plan, runs, fresh=fresh, retry=retry)
    _greet(plan, folder, known)
    if quick:
        _no_promise(plan)
    turns = values["repeats"] if _is_on_command_line(context, "repeats") else None
    result, stopped = None, None
    with RaceView() as view:
        watcher = Last(view)
        try:
            result = run_race(plan, folder, measured=_measured(quick, turns), watcher=watcher, retry=retry)
        except Stopped as problem:
            result, stopped = watcher.race, problem
    if result is not None:
        for line in closing(result):
            print(line)
    if stopped is not None:
        _name_kept(plan, folder)
    print(f"\nrecords: {folder.path}")
    if result is not None and result.records:
        _report(result)
        if log_to is not None:
            _send(result, log_to)
        if json is not None:
            write(json, jsons.dumps(as_json(result), indent=1) + "\n")
    if stopped is not None:
        raise stopped
    if result is not None and result.failures:
        raise typer.Exit(1)


def _name_kept(plan: Any, folder: Any) -> None:
    """Print how many records a stopped race has kept, and that the same command continues it."""
    records = [folder.record_of(cell) for cell in plan.cells]
    count = sum(record is not None and record.verdict != "failed" for record in records)
    what = "1 record is" if count == 1 else f"{count} records are"
    print(f"stopped: {what} kept; the same command goes on with the race", flush=True)


def _plan(context: typer.Context, values: dict[str, Any]) -> Any:
    """Return the plan of a race from its suite file or the defaults; flags on the command line override both."""
    from paceline.race.plan import plan
    from paceline.race.script import left_out, script_suite
    from paceline.race.suite import Suite, read_suite

    chosen = {name: values[name] for name in values if _is_on_command_line(context, name)}
    raced = read_suite(values["suite"]) if values["suite"] else Suite.model_validate(_defaults(chosen))
    script = list(context.obj or ())
    ignored = left_out(raced) if script and values["suite"] else []
    changes, common = _changes(chosen), {name: chosen[name] for name in COMMON if name in chosen}
    if values["quick"]:
        changes = {**{name: QUICK[name] for name in ("reference_rounds", "minutes", "half_width")}, **changes}
        if not values["suite"] and "model" not in chosen:
            changes["models"] = USUAL_MODELS[-1:]
        common = {"warmup": QUICK["warmup"]} | common
    try:
        raced = Suite.model_validate({**raced.model_dump(exclude_unset=True), **changes, "run": raced.common | common})
    except ValidationError as problem:
        raise o.wrong_value(problem, {"batch_sizes": flag_of("batch_size")}) from None
    if script:
        _nothing_of_the_script(chosen)
        raced = script_suite(raced, script)
    if ignored:
        print(f"note: the script chooses model, data and steps itself; not used: {', '.join(ignored)}", file=sys.stderr)
    return plan(raced, script=script)


def _changes(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the suite that flags on the command line set."""
    from paceline.race.contenders import split

    named = ("rounds", "minutes", "margin", "half_width", "isolated", "seed")
    changes: dict[str, Any] = {name: chosen[name] for name in named if name in chosen}
    kinds = {"models": ("model", str), "workers": ("workers", int), "batch_sizes": ("batch_size", int)}
    for field, (flag, kind) in kinds.items():
        if flag in chosen:
            changes[field] = [_whole(flag, word, kind) for word in split(chosen[flag])]
    contenders = [*split(chosen.get("strategies", "")), *chosen.get("contender", ())]
    if contenders:
        changes["contenders"] = contenders
    _at_least_one(changes)
    return changes


def _defaults(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the suite of a race without flags. 32x32 images are used only with the default models and fake samples."""
    own = "model" in chosen or not chosen.get("source", o.DEFAULTS.source).startswith("fake")
    usual = {"models": USUAL_MODELS, "contenders": USUAL_CONTENDERS, "batch_sizes": [USUAL_BATCH]}
    common = {} if "epochs" in chosen else USUAL
    return {**usual, "run": common if own else {**common, "image_size": 32}}


def _whole(flag: str, word: str, kind: type) -> Any:
    try:
        return kind(word)
    except ValueError:
        why, name = "it takes whole numbers, with commas between", flag_of(flag)
        raise WrongCommand(f"{name} {short(word)}", why=why, remedy=f"{name} 1,2") from None


def _at_least_one(changes: dict[str, Any]) -> None:
    checks = {"rounds": ("--rounds", "round"), "workers": ("-np", "worker"), "batch_sizes": ("--batch-size", "sample")}
    for name, (flag, unit) in checks.items():
        for value in changes.get(name, []) if name != "rounds" else [changes.get("rounds", 1)]:
            if value < 1:
                raise WrongCommand(f"{flag} {value}", why=f"at least 1 {unit} is needed", remedy=f"{flag} 1")


def _nothing_of_the_script(chosen: dict[str, Any]) -> None:
    from paceline.race.script_record import TAKEN

    foreign = [name for name in (*COMMON, "model", "batch_size") if name in chosen and name not in TAKEN]
    if foreign:
        why = "the script chooses model, data and steps itself"
        raise WrongCommand(f"{flags_of(foreign)} with a script", why=why, remedy="leave it out")


def _is_on_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _measured(quick: bool, turns: int | None) -> Any:
    from paceline.measure.measure import WATCHED
    from paceline.race.measured import Measured

    return Measured(watched=QUICK_WATCHED if quick else WATCHED, turns=turns, weighs=not quick)


class Last:
    """A watcher that passes events on to the view, and keeps the last race, so that a stopped race can be reported."""

    def __init__(self, view: Any) -> None:
        self._view, self.race = view, None

    def began(self, race: Any, start: Any) -> None:
        self.race = race
        self._view.began(race, start)

    def progress(self, race: Any, start: Any, line: str) -> None:
        self._view.progress(race, start, line)

    def ended(self, race: Any, start: Any) -> None:
        self._view.ended(race, start)

    def noted(self, race: Any, text: str) -> None:
        self._view.noted(race, text)


def _greet(plan: Any, folder: Any, known: bool) -> None:
    from paceline.race.lines import public, wrapped

    if plan.suite.title:
        print(public(plan.suite.title), flush=True)
    labels = list(dict.fromkeys(public(entry.label) for entry in plan.entries))
    what = "; ".join(public(plan.title(heat)) for heat in plan.heats)
    for line in (*wrapped(", ".join(labels)), *wrapped(f"{_length(plan)}: {what}")):
        print(line, flush=True)
    for note in (*plan.suite.notes, *plan.notes):
        for line in wrapped(f"note: {note}"):
            print(line, flush=True)
    for warning in _warnings(plan):
        for line in wrapped(f"note: {warning}"):
            print(line, flush=True)
    if known:
        print(f"going on with {folder.path}; --fresh starts anew", flush=True)
        for path, why in folder.damaged(plan):
            print(f"{path.name} is damaged ({why}): its cell runs again", flush=True)


def _warnings(plan: Any) -> Iterator[str]:
    """Yield what on this machine would spoil a race, before it starts."""
    from paceline.measure.busy import cores, look, why_busy

    workers = max(heat.workers for heat in plan.heats)
    if workers > cores():
        yield f"{workers} workers on {cores()} cores: they wait for each other, and rates say little about more cores"
    if why := why_busy(look()):
        yield f"this machine is busy now: {why}; ratios need more starts, and rates are too low"


def _no_promise(plan: Any) -> None:
    """Print a note where --quick may take longer: its two minutes hold for one heat of built-in models only."""
    from paceline.race.cells import starts_of
    from paceline.race.lines import wrapped

    if not plan.script and len(plan.heats) == 1:
        return
    starts = len(starts_of(plan.cells_in(1)))
    each = ", each as long as the script" if plan.script else ""
    for line in wrapped(
        f"note: the first round always runs, {starts} fresh starts{each}; then no start begins that would run past "
        f"{plan.suite.minutes_of_a_heat:g} minutes of its heat"
    ):
        print(line, flush=True)


def _length(plan: Any) -> str:
    """Return in words how long a race takes."""
    suite = plan.suite
    if suite.until_sure:
        return f"until every contender is decided, at most {suite.minutes_of_a_heat:g} minutes per heat"
    most = f", at most {suite.minutes:g} minutes per heat" if suite.minutes else ""
    return f"{suite.rounds} round(s){most}"


def _send(result: Any, service: str) -> None:
    """Send the records of this command; those of earlier sittings were sent then."""
    from paceline.report.trackers import send

    fresh = [record for record in list(result.records.values())[result.kept :] if record.verdict != "failed"]
    for record in fresh:
        send(record, service)
    print(f"sent: {len(fresh)} records to {service}")


def _report(result: Any) -> None:
    """Write the report page of the race, if this installation has the report."""
    try:
        page = importlib.import_module("paceline.report.page")
    except ModuleNotFoundError:
        return
    path = result.folder.path / "report.html"
    page.write_report(list(result.records.values()), path)
    print(f"report: {path}")

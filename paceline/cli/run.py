"""paceline run: train or measure one configuration, or launch a script."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import TotalLine, details, step_lines
from paceline.cli.submit import hand_over
from paceline.cli.words import settings_of
from paceline.errors import UnknownName, WorkloadError, WrongCommand
from paceline.measure.record.record import Record, check_writable, read, write
from paceline.run.run import TO_LAUNCHER, TO_SCRIPTS, Run, flags_of
from paceline.strategy import memberships


def _output(flag: str, help: str) -> Any:
    return typer.Option(flag, help=help, rich_help_panel=o.OUTPUT)


@app.command()
@o.takes_run()
def run(
    context: typer.Context,
    values: dict[str, Any],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings in the form of published benchmark scripts: dnn=resnet50 bs=64; or your own script: "
            "-- python my_train.py"
        ),
    ] = None,
    runs: o.Runs = Path("runs"),
    baseline: Annotated[
        Path | None, _output("--baseline", "Record of one worker: show speed-up and efficiency against it.")
    ] = None,
    experiment: Annotated[
        Path | None,
        _output(
            "--experiment", "TOML file that describes the experiment and its expected result; it is kept in the record."
        ),
    ] = None,
    peak_flops: Annotated[
        float | None,
        _output(
            "--peak-flops",
            "Peak FLOPs per second of a worker, for utilization. [default: measured on a CPU, unknown on a GPU]",
        ),
    ] = None,
    log_format: Annotated[
        str, _output("--log-format", "plain, or tf_cnn: print steps as tf_cnn_benchmarks does.")
    ] = "plain",
    trace: Annotated[
        Path | None, _output("--trace", "Write a trace of a few steps to this file, for Perfetto or chrome://tracing.")
    ] = None,
    tensorboard: Annotated[
        Path | None, _output("--tensorboard", "Write scalars to this folder (needs tensorboard).")
    ] = None,
    log_to: Annotated[
        str | None,
        _output(
            "--log-to", "Send scalars to wandb or mlflow when the run has ended. Without this flag nothing is sent."
        ),
    ] = None,
    json: o.JsonFile = None,
) -> None:
    """Train or measure one configuration, or launch a script on several workers.

    The last line is `Total img/sec on N CPU(s): X +- Y`: X is the rate of all workers together, Y is 1.96 standard
    errors over the repeats inside this run. A script that calls pace.step() leaves a record, too.
    """
    configuration = o.run_from(values, words or (), settings_on_command_line(context))
    if log_format not in LOG_FORMATS:
        raise UnknownName("log format", log_format, LOG_FORMATS)
    hand_over(configuration.launcher, configuration.workers)
    if context.obj:
        _launch(configuration, context, words or (), Kept(runs, json, tensorboard, log_to))
        return
    if configuration.membership and memberships.MENU.make(configuration.membership).elastic:
        _refuse_measured(context)
        _train_elastic(configuration, runs, json)
        return
    for flag, path in {"--json": json, "--trace": trace}.items():
        if path is not None:
            check_writable(path, flag)
    if peak_flops is not None and not 0 < peak_flops < float("inf"):
        raise WrongCommand(f"--peak-flops {peak_flops:g}", why="it is above 0, and finite", remedy="--peak-flops 1e12")
    extras = {
        "baseline": read(baseline) if baseline else None,
        "experiment": _experiment(experiment),
        "peak": peak_flops,
    }
    if tensorboard is not None:
        from paceline.report.tensorboard import check as check_tensorboard

        check_tensorboard()
    if log_to is not None:
        from paceline.report.trackers import check_tracker

        check_tracker(log_to)
    shown = Shown(log_format)
    with shown:
        record, kept = _measure(configuration, settings_on_command_line(context), runs, json, extras, shown)
        _beside(record, kept, trace, tensorboard)
        if log_to is not None:
            from paceline.report.trackers import send

            send(record, log_to)
    check_target(configuration, record)


def check_target(run: Run, record: Record) -> None:
    """Raise if the run did not reach the accuracy of --target, so that the exit code is 1."""
    if run.target is None:
        return
    values = [grade["value"] for grade in record.accuracy]
    if not values:
        raise WorkloadError(f"--target {run.target:g}", why=f"source {run.source} has no test part to measure it on")
    if values[-1] < run.target:
        best = f"the last accuracy is {values[-1]:.4f}, the best {max(values):.4f}"
        raise WorkloadError(f"target {run.target:g} was not reached", why=best, remedy="more --epochs")


LOG_FORMATS = ("plain", "tf_cnn")


def _experiment(path: Path | None) -> Any:
    from paceline.measure.record.experiment import read_experiment

    return read_experiment(path) if path else None


def _beside(record: Record, kept: Path, trace: Path | None, tensorboard: Path | None) -> None:
    """Write the trace and the TensorBoard scalars, if flags ask for them."""
    if trace is not None:
        from paceline.measure.record.events import read_events
        from paceline.measure.record.store import Stored
        from paceline.report.trace import chrome_trace, to_json

        events = read_events(Stored(record, kept).events_path)
        write(trace, to_json(chrome_trace(record, events)))
        print(f"trace: {trace} (open it in ui.perfetto.dev or chrome://tracing)")
    if tensorboard is not None:
        from paceline.report.tensorboard import write_scalars

        write_scalars(record, tensorboard)
        print(f"tensorboard: {tensorboard}")


class Shown(TotalLine):
    """A TotalLine that also prints the result of a run as soon as it is known, before any file is written."""

    def __init__(self, log_format: str) -> None:
        super().__init__()
        self._log_format = log_format

    def __call__(self, record: Record) -> None:
        super().__call__(record)
        for line in (*(step_lines(record) if self._log_format == "tf_cnn" else ()), *details(record)):
            print(line)


def _measure(
    run: Run, chosen: Sequence[str], runs: Path, json: Path | None, extras: dict[str, Any], shown: Shown
) -> tuple[Record, Path]:
    from paceline.race.keep import check_runs, keep
    from paceline.run.compose.compose import check
    from paceline.run.compose.flags import check_variables
    from paceline.run.own_model import check_own_models

    check_variables(run, os.environ)
    composed = check(run)
    for note in composed.notes:
        print(f"note: {note}", flush=True)
    check_own_models([run])
    check_runs(runs)
    print(f"{run.command(chosen)}\nstarting {run.workers} worker(s) ...", flush=True)
    record, path = keep(run, runs, composed=composed, chosen=chosen, json=json, show=shown, **extras)
    print(f"record: {json or path}")
    return record, path


@dataclass(frozen=True)
class Kept:
    """Places that the record of a script goes to."""

    runs: Path
    json: Path | None = None
    tensorboard: Path | None = None
    log_to: str | None = None

    def __call__(self, record: Record) -> None:
        """Write the record, and say where on stderr: stdout is the script's own."""
        from paceline.measure.record.record import make_folder
        from paceline.race.keep import save

        make_folder(self.runs)
        path = self.runs / f"{record.id}.json"
        record = save(record, [], path)
        if self.json is not None:
            save(record, [], self.json)
        for line in (*script_line(record), f"record: {self.json or path}"):
            print(line, file=sys.stderr, flush=True)
        if self.tensorboard is not None and record.verdict != "failed":
            from paceline.report.tensorboard import write_scalars

            write_scalars(record, self.tensorboard)
        if self.log_to is not None and record.verdict != "failed":
            from paceline.report.trackers import send

            send(record, self.log_to)

    def check(self) -> None:
        """Raise, before the script starts, if one of the places cannot be used."""
        _check_places(self.runs, self.json)
        if self.tensorboard is not None:
            from paceline.report.tensorboard import check as check_tensorboard

            check_tensorboard()
        if self.log_to is not None:
            from paceline.report.trackers import check_tracker

            check_tracker(self.log_to)


def script_line(record: Record) -> Iterator[str]:
    """Yield the rate and the step time of a script, if it did not fail."""
    if record.verdict != "failed":
        rate = f"{record.rate['total']['mean']:,.1f} {record.unit}/s on {record.workers} worker(s)"
        yield f"measured: {rate}, {1e3 * record.step['median']:.1f} ms per update"


def _launch(run: Run, context: typer.Context, words: Sequence[str], places: Kept) -> None:
    """Start the script with the settings on the command line; everything else is up to the script."""
    from paceline.cluster.machine import machine
    from paceline.race.script import launch, launch_measured
    from paceline.run.compose.compose import OWN, compose

    composed = compose(run, machine(), unknown=OWN)
    elastic = composed.axes is not None and composed.axes.membership.elastic
    _nothing_of_the_script(context, words, kept=("runs", "json") if elastic else OF_SCRIPTS)
    chosen = [*settings_on_command_line(context), *settings_of(words, note=lambda _: None)]
    choices = {name: getattr(run, name) for name in chosen if name in TO_SCRIPTS}
    started: dict[str, Any] = {"run": run, "servers": composed.servers, "choices": choices}
    if elastic and composed.axes is not None:
        places.check()
        record = launch(context.obj, **started, elastic=composed.axes.membership)
        if record is not None:
            _keep_elastic(record, places.runs, places.json)
        return
    wanted = [name for name in flags_on_command_line(context) if name in OF_SCRIPTS]
    if not _can_keep(places, wanted):
        launch(context.obj, **started)
        return
    missing = launch_measured(context.obj, **started, chosen=chosen, keep=places)
    if missing and wanted:
        raise WrongCommand(f"{flags_of(wanted)}: there is no record", why=missing, remedy="pace.step() in the loop")


def _can_keep(places: Kept, wanted: Sequence[str]) -> bool:
    """Return whether a record can be written. If not, raise if the user wants one, else print a note."""
    try:
        places.check()
    except WrongCommand as problem:
        if wanted:
            raise
        print(f"note: no record is kept, because {problem.why or problem}", file=sys.stderr, flush=True)
        return False
    return True


def _refuse_measured(context: typer.Context) -> None:
    """Refuse flags about measured steps, which a job whose members change does not have."""
    odd = [name for name in flags_on_command_line(context) if name in _OF_RECORDS and name not in ("runs", "json")]
    if odd:
        raise WrongCommand(f"{flags_of(odd)} with membership elastic", why="its members change", remedy="leave it out")


def _train_elastic(run: Run, runs: Path, json: Path | None) -> None:
    """Train a model of the list in an elastic job."""
    from paceline.race.script import launch
    from paceline.run.compose.compose import check
    from paceline.run.own_model import check_own_models

    composed = check(run)
    for note in composed.notes:
        print(f"note: {note}", flush=True)
    _check_elastic(run)
    check_own_models([run])
    _check_places(runs, json)
    members = composed.axes.membership if composed.axes is not None else None
    argv = [sys.executable, "-m", "paceline.api.elastic_run"]
    record = launch(argv, run=run, choices={"membership": run.membership}, elastic=members, trained=run)
    if record is not None:
        for line in details(record):
            print(line)
        _keep_elastic(record, runs, json)


def _check_elastic(run: Run) -> None:
    """Refuse settings that an elastic run would ignore."""
    odd = {
        "--precision": run.precision != "fp32",
        "--compile": run.compile,
        "--target": run.target is not None,
        "--memory-format": run.memory_format == "channels_last",
    }
    if wrong := [flag for flag, is_set in odd.items() if is_set]:
        raise WrongCommand(
            f"{', '.join(wrong)} with membership elastic",
            why="members train in fp32, shard by shard, and do not evaluate",
            remedy="leave it out, or a script of your own",
        )


def _check_places(runs: Path, json: Path | None) -> None:
    """Refuse, before the job starts, places where its record could not be written."""
    from paceline.race.keep import check_runs

    check_runs(runs)
    if json is not None:
        check_writable(json)


def _keep_elastic(record: Record, runs: Path, json: Path | None) -> None:
    """Write the record of an elastic job, and say where."""
    from paceline.measure.record.record import make_folder
    from paceline.race.keep import save

    make_folder(runs)
    path = runs / f"{record.id}.json"
    save(record, [], path)
    if json is not None:
        save(record, [], json)
    print(f"record: {json or path}")


def _nothing_of_the_script(context: typer.Context, words: Sequence[str], kept: Sequence[str] = ()) -> None:
    """Refuse flags that would not reach the script, and flags about a record, except those in `kept`."""
    flags = [name for name in flags_on_command_line(context) if name not in ("words", *kept)]
    results = [name for name in flags if name in _OF_RECORDS]
    if results:
        raise WrongCommand(
            f"{flags_of(results)} with a script",
            why="the steps are the script's own",
            remedy=f"leave it out; {flags_of(kept)} work here",
        )
    taken = ("workers", *TO_SCRIPTS, *TO_LAUNCHER)
    foreign = [name for name in [*flags, *settings_of(words, note=lambda _: None)] if name not in taken]
    if foreign:
        raise WrongCommand(
            f"{flags_of(foreign)} with a script",
            why="the script chooses model, data and steps itself",
            remedy="leave it out",
        )


OF_SCRIPTS = ("runs", "json", "tensorboard", "log_to")
_OF_RECORDS = (
    *("json", "trace", "tensorboard", "runs", "log_to"),
    *("baseline", "experiment", "peak_flops", "log_format"),
)


def flags_on_command_line(context: typer.Context) -> list[str]:
    """Names of the parameters that are on the command line; values from environment variables do not count."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def settings_on_command_line(context: typer.Context) -> list[str]:
    """Names of the fields of a run that are on the command line as flags."""
    return [name for name in flags_on_command_line(context) if name in Run.model_fields]

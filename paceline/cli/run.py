"""paceline run: train or measure one configuration, or launch any script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import details, step_lines, total_line
from paceline.cli.words import settings_of
from paceline.errors import UnknownName, WrongCommand
from paceline.record import Record, check_writable, read, write
from paceline.run import TO_LAUNCHER, TO_SCRIPTS, Run


@app.command()
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(help="dnn=resnet50 bs=64 nworkers=4, or: -- python my_train.py")
    ] = None,
    workers: o.Workers = o.DEFAULTS.workers,
    strategy: o.StrategyName = None,
    rule: o.RuleText = None,
    exchange: o.ExchangeText = None,
    topology: o.TopologyText = None,
    schedule: o.ScheduleText = None,
    compress: o.CompressText = None,
    membership: o.MembershipText = None,
    comm: o.CommName = o.DEFAULTS.comm,
    nodes: o.Nodes = None,
    profile: o.ProfileFile = None,
    lab: o.LabText = None,
    cpus: o.Cpus = None,
    model: o.ModelText = o.DEFAULTS.model,
    classes: o.Classes = None,
    image_size: o.ImageSize = None,
    sequence_length: o.SequenceLength = None,
    batch_size: o.BatchSize = None,
    global_batch: o.GlobalBatch = None,
    source: o.SourceText = o.DEFAULTS.source,
    fake_location: o.FakeLocation = None,
    optimizer: o.OptimizerText = o.DEFAULTS.optimizer,
    memory_format: o.MemoryFormat = o.DEFAULTS.memory_format,
    precision: o.Precision = o.DEFAULTS.precision,
    use_fp16: o.UseFp16 = False,
    compile: o.Compile = False,
    accumulate: o.Accumulate = o.DEFAULTS.accumulate,
    clip_norm: o.ClipNorm = None,
    compute: o.Compute = o.DEFAULTS.compute,
    steps: o.Steps = None,
    epochs: o.Epochs = None,
    warmup: o.Warmup = o.DEFAULTS.warmup,
    repeats: o.Repeats = o.DEFAULTS.repeats,
    seed: o.Seed = o.DEFAULTS.seed,
    threads: o.Threads = None,
    deadline: o.Deadline = o.DEFAULTS.deadline,
    runs: o.Runs = Path("runs"),
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="Record of one worker: speed-up and efficiency against it.")
    ] = None,
    experiment: o.ExperimentFile = None,
    peak_flops: o.PeakFlops = None,
    log_format: Annotated[
        str, typer.Option("--log-format", help="plain, or tf_cnn: the step lines of tf_cnn_benchmarks.")
    ] = "plain",
    trace: o.TraceFile = None,
    tensorboard: o.TensorboardFolder = None,
    json: o.JsonFile = None,
) -> None:
    """Train or measure one configuration, or launch a script on several workers.

    The last line is `Total img/sec on N CPU(s): X +- Y`: X is the sum of what every rank measured, Y is 1.96
    standard errors over the repeats inside this run. A script: paceline run -np 4 -- python my_train.py
    """
    values = {key: value for key, value in locals().items() if key != "context"}
    asked = o.run_from(values, words or (), settings_given(context))
    if log_format not in LOG_FORMATS:
        raise UnknownName("log format", log_format, LOG_FORMATS)
    if context.obj:
        _launch(asked, context, words or ())
        return
    for flag, path in {"--json": json, "--trace": trace}.items():
        if path is not None:
            check_writable(path, flag)
    extras = {
        "baseline": read(baseline) if baseline else None,
        "experiment": _told(experiment),
        "peak": peak_flops,
    }
    if tensorboard is not None:
        from paceline.report.tensorboard import check as check_tensorboard

        check_tensorboard()
    record, kept = _measure(asked, runs, json, extras, log_format)
    _beside(record, kept, trace, tensorboard)
    print(total_line(record), flush=True)


LOG_FORMATS = ("plain", "tf_cnn")


def _told(path: Path | None) -> Any:
    from paceline.experiment import read_experiment

    return read_experiment(path) if path else None


def _beside(record: Record, kept: Path, trace: o.TraceFile, tensorboard: o.TensorboardFolder) -> None:
    """What was asked for beside the record."""
    if trace is not None:
        from paceline.report.store import Stored, read_events
        from paceline.report.trace import chrome_trace, to_json

        events = read_events(Stored(record, kept).events_path)
        write(trace, to_json(chrome_trace(record, events)))
        print(f"trace: {trace} (open it in ui.perfetto.dev or chrome://tracing)")
    if tensorboard is not None:
        from paceline.report.tensorboard import write_scalars

        write_scalars(record, tensorboard)
        print(f"tensorboard: {tensorboard}")


def _measure(run: Run, runs: Path, json: Path | None, extras: dict[str, Any], log_format: str) -> tuple[Record, Path]:
    from paceline.jobs.keep import check_runs, keep
    from paceline.jobs.measure import check

    for note in check(run):
        print(f"note: {note}", flush=True)
    check_runs(runs)
    print(f"{run.text}\nstarting {run.workers} worker(s) ...", flush=True)
    record, path = keep(run, runs, json=json, **extras)
    if log_format == "tf_cnn":
        for line in step_lines(record):
            print(line)
    for line in details(record):
        print(line)
    print(f"record: {json or path}")
    return record, path


def _launch(run: Run, context: typer.Context, words: Sequence[str]) -> None:
    """Only what stands on the command line reaches the script, so that its own choices hold otherwise."""
    from paceline.compose import OWN, compose, servers_of
    from paceline.jobs.measure import machine
    from paceline.jobs.script import launch

    _nothing_of_the_script(context, words)
    compose(run, machine(), unknown=OWN)
    given = [*settings_given(context), *settings_of(words, note=lambda _: None)]
    choices = {name: getattr(run, name) for name in given if name in TO_SCRIPTS}
    launch(context.obj, run=run, servers=servers_of(run), choices=choices)


def _nothing_of_the_script(context: typer.Context, words: Sequence[str]) -> None:
    """Refuse what would not reach the script, or is about a record that it does not leave."""
    given = [name for name in given_flags(context) if name != "words"]
    results = [name for name in given if name in _OF_RECORDS]
    if results:
        raise WrongCommand(
            f"{_flags(results)} with a script",
            why="a script makes its own results, and run keeps no record of it",
            remedy=f"leave it out, or paceline race {shlex.join(['--', *context.obj])}",
        )
    taken = ("workers", *TO_SCRIPTS, *TO_LAUNCHER)
    foreign = [name for name in [*given, *settings_of(words, note=lambda _: None)] if name not in taken]
    if foreign:
        raise WrongCommand(
            f"{_flags(foreign)} with a script",
            why="the script chooses model, data and steps itself",
            remedy="leave it out",
        )


def _flags(names: Sequence[str]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


_OF_RECORDS = (
    *("json", "trace", "tensorboard", "runs"),
    *("baseline", "experiment", "peak_flops", "log_format"),
)


def given_flags(context: typer.Context) -> list[str]:
    """What stands on the command line, by the names of the parameters; not what a variable says."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def settings_given(context: typer.Context) -> list[str]:
    """The settings of a run that stand on the command line as flags."""
    return [name for name in given_flags(context) if name in Run.model_fields]

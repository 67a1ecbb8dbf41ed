"""paceline run: train or measure one configuration, or launch any script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import details, total_line
from paceline.errors import WrongCommand
from paceline.record import Record, check_writable, write
from paceline.run import Run


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
    trace: o.TraceFile = None,
    tensorboard: o.TensorboardFolder = None,
    json: o.JsonFile = None,
) -> None:
    """Train or measure one configuration, or launch a script on several workers.

    The last line is `Total img/sec on N CPU(s): X +- Y`: X is the sum of what every rank measured, Y is 1.96
    standard errors over the repeats inside this run. A script: paceline run -np 4 -- python my_train.py
    """
    asked = o.run_from({key: value for key, value in locals().items() if key != "context"}, words or ())
    beside = {"--json": json, "--trace": trace, "--tensorboard": tensorboard}
    for flag, path in beside.items():
        if path is not None and context.obj:
            raise WrongCommand(
                f"{flag} with a script", why="a script makes its own results", remedy=f"leave {flag} out"
            )
        if path is not None and flag != "--tensorboard":
            check_writable(path, flag)
    if context.obj:
        _launch(asked, context)
        return
    if tensorboard is not None:
        from paceline.report.tensorboard import check as check_tensorboard

        check_tensorboard()
    record, events = _measure(asked, json)
    _beside(record, events, trace, tensorboard)
    print(total_line(record), flush=True)


def _beside(
    record: Record, events: Sequence[Sequence[Any]], trace: o.TraceFile, tensorboard: o.TensorboardFolder
) -> None:
    """What was asked for beside the record."""
    if trace is not None:
        from paceline.report.trace import chrome_trace, to_json

        write(trace, to_json(chrome_trace(record, events)))
        print(f"trace: {trace} (open it in ui.perfetto.dev or chrome://tracing)")
    if tensorboard is not None:
        from paceline.report.tensorboard import write_scalars

        write_scalars(record, tensorboard)
        print(f"tensorboard: {tensorboard}")


def _measure(run: Run, json: o.JsonFile) -> tuple[Record, Sequence[Sequence[Any]]]:
    from paceline.jobs.events import write_events
    from paceline.jobs.measure import check, measure

    for note in check(run):
        print(f"note: {note}", flush=True)
    print(f"{run.text}\nstarting {run.workers} worker(s) ...", flush=True)
    record, events = measure(run)
    if json is not None:
        record = record.model_copy(update={"events": write_events(json, events)})
        write(json, record.to_json())
    for line in details(record):
        print(line)
    if json is not None:
        print(f"record: {json}")
    return record, events


def _launch(run: Run, context: typer.Context) -> None:
    """Only what stands on the command line reaches the script, so that its own choices hold otherwise."""
    from paceline.compose import compose, servers_of
    from paceline.jobs.measure import machine
    from paceline.jobs.script import launch

    given = [name for name in Run.model_fields if _was_given(context, name)]
    foreign = [name for name in given if name not in _FOR_SCRIPTS]
    if foreign:
        flags = ", ".join("--" + name.replace("_", "-") for name in foreign)
        raise WrongCommand(
            f"{flags} with a script",
            why="the script chooses model, data and steps itself",
            remedy="leave it out",
        )
    compose(run, machine())
    choices = {name: getattr(run, name) for name in given if name not in _FOR_LAUNCHER}
    launch(context.obj, run=run, servers=servers_of(run), choices=choices)


_FOR_SCRIPTS = (
    *("workers", "strategy", "rule", "exchange", "topology", "schedule", "compress", "membership"),
    *("comm", "nodes", "profile", "deadline", "threads", "lab", "cpus"),
)
_FOR_LAUNCHER = ("workers", "threads", "lab", "cpus")


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"

"""paceline explain: what a run would do, or why it is refused, without running it."""

from __future__ import annotations

import json as jsons
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.run import settings_given
from paceline.errors import WrongCommand
from paceline.record import check_writable, write


@app.command()
def explain(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(help="dnn=resnet50 bs=64 nworkers=4")] = None,
    workers: o.Workers = 2,
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
    json: o.JsonFile = None,
) -> None:
    """Print members, notes, chunks and bytes of a run, or every reason why it is refused.

    It takes the flags and words that describe a run: put explain in place of run. Without -np it is of two workers.
    """
    from paceline.jobs.explain import explain as work
    from paceline.jobs.explain import spoken

    values = {key: value for key, value in locals().items() if key != "context"}
    if context.obj:
        why = "what it sends is known when it has wrapped its model"
        raise WrongCommand("explain with a script", why=why, remedy="leave it out, and give --model")
    if json is not None:
        check_writable(json)
    found = work(o.run_from(values, words or (), settings_given(context)))
    for line in spoken(found):
        print(line)
    if json is not None:
        members = {} if found.axes is None else {k: str(v) for k, v in vars(found.axes).items() if k != "notes"}
        told = {
            "text": found.run.text,
            "axes": members,
            "notes": list(found.notes),
            "model_bytes": found.model_bytes,
            "chunks": list(found.chunks),
            "planned": found.planned,
            "received": list(found.received),
            "crossing": list(found.crossing),
            "steps": found.steps,
            "period": found.period,
            "rounds": found.rounds,
            "prediction": None if found.prediction is None else vars(found.prediction),
        }
        write(json, jsons.dumps(told, indent=1) + "\n")

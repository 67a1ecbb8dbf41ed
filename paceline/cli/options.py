"""The flags that describe a run, shared by the verbs that take one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from paceline.cli.words import settings_of
from paceline.errors import UnknownName, WrongCommand
from paceline.run import Run

Workers = Annotated[int, typer.Option("-np", "--workers", help="Number of workers.")]
StrategyName = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        "--dist-optimizer",
        "--variable-update",
        help="A named bundle of axes: see paceline strategies.",
    ),
]
RuleText = Annotated[str | None, typer.Option("--rule", help="Axis: what leaves a worker, and when.")]
ExchangeText = Annotated[str | None, typer.Option("--exchange", help="Axis: how a chunk is combined.")]
TopologyText = Annotated[str | None, typer.Option("--topology", help="Axis: who mixes with whom.")]
ScheduleText = Annotated[
    str | None, typer.Option("--schedule", help="Axis: where gradients are cut: fusion(mb=25), mgwfbp, ...")
]
CompressText = Annotated[
    str | None,
    typer.Option("--compress", help="Axis: none, cast(bf16), sign, feedback(topk(ratio=0.01)), ..."),
]
MembershipText = Annotated[str | None, typer.Option("--membership", help="Axis: fixed.")]
Nodes = Annotated[str | None, typer.Option("--nodes", help="Pretend nodes on this host: 2x4 is two of four ranks.")]
LabText = Annotated[
    str | None,
    typer.Option("--lab", help="Start ranks on shaped hosts in this machine (root): lab(hosts=4, bandwidth=1gbit)."),
]
Cpus = Annotated[float | None, typer.Option("--cpus", help="Share of a core for each worker (root): 0.3.")]
CommName = Annotated[str, typer.Option("--comm", help="auto, shm, gloo or nccl.")]
ProfileFile = Annotated[
    str | None, typer.Option("--profile", help="Layer times (and link) to plan with: a record or a profile.")
]
ModelText = Annotated[
    str,
    typer.Option("--model", help="See paceline models; also torchvision:NAME or package.module:function."),
]
Classes = Annotated[int | None, typer.Option("--classes", help="Number of classes.")]
ImageSize = Annotated[int | None, typer.Option("--image-size", help="Pixels per side.")]
SequenceLength = Annotated[int | None, typer.Option("--sequence-length", help="Tokens per sequence.")]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", "--batch", help="Samples per worker and backward. [default: 32]")
]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="Samples of all workers per update.")]
SourceText = Annotated[
    str, typer.Option("--source", help="Where batches come from: fake(device), fake(cpu), idx(FOLDER).")
]
FakeLocation = Annotated[
    str | None, typer.Option("--fake-location", help="The published words for --source: gpu or cpu.")
]
OptimizerText = Annotated[str, typer.Option("--optimizer", help="Any of torch.optim, with settings.")]
MemoryFormat = Annotated[str, typer.Option("--memory-format", help="contiguous or channels_last.")]
Precision = Annotated[str, typer.Option("--precision", help="fp32, bf16 or fp16 (autocast; fp16 scales the loss).")]
UseFp16 = Annotated[bool, typer.Option("--use-fp16", help="The published word for --precision fp16.")]
Compile = Annotated[bool, typer.Option("--compile", "--use-xla-compile", help="torch.compile (needs g++).")]
Accumulate = Annotated[int, typer.Option("--accumulate", help="Backward passes per update.")]
ClipNorm = Annotated[float | None, typer.Option("--clip-norm", help="Largest global norm of the mean gradient.")]
Compute = Annotated[
    str, typer.Option("--compute", help="real, or replay(FILE, scale=1): wait as long as a profile or record says.")
]
Steps = Annotated[int | None, typer.Option("--steps", help="Updates per repeat. [default: 10]")]
Epochs = Annotated[int | None, typer.Option("--epochs", help="Epochs of the source, instead of --steps.")]
Warmup = Annotated[int, typer.Option("--warmup", help="Updates before the clock starts.")]
Repeats = Annotated[int, typer.Option("--repeats", help="Measured blocks of --steps; the error is over these.")]
Seed = Annotated[int, typer.Option("--seed", help="Of parameters and of the order of samples.")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Compute threads per worker. [default: cores / workers]")
]
Deadline = Annotated[float, typer.Option("--deadline", help="Seconds after which a silent rank is given up.")]
Runs = Annotated[
    Path, typer.Option("--runs", envvar="PACELINE_RUNS", show_envvar=False, help="Folder for the records.")
]
PeakFlops = Annotated[
    float | None,
    typer.Option("--peak-flops", help="FLOPs per second of a worker. [default: measured, on a CPU]"),
]
ExperimentFile = Annotated[
    Path | None, typer.Option("--experiment", help="TOML file with description, storage, expected, ...: kept.")
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Write a few steps here, for Perfetto or chrome://tracing.")
]
TensorboardFolder = Annotated[
    Path | None, typer.Option("--tensorboard", help="Write scalars here (needs tensorboard).")
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the result here.")]

DEFAULTS = Run()

LOCATIONS = {"gpu": "fake(device)", "cpu": "fake(cpu)"}


def run_from(values: Mapping[str, Any], words: Sequence[str] = (), given: Collection[str] = ()) -> Run:
    """A Run from flags and `key=value` words; pydantic's complaints become ours.

    `given` are the flags that stand on the command line: a word must not say something else.
    """
    settings = {name: value for name, value in values.items() if name in Run.model_fields}
    location = values.get("fake_location")
    if location is not None:
        if location not in LOCATIONS:
            raise UnknownName("fake location", location, LOCATIONS)
        settings["source"] = LOCATIONS[location]
    if values.get("use_fp16"):
        settings["precision"] = "fp16"
    flags = {name: values[name] for name in given}
    settings.update(settings_of(words, lambda text: print(f"note: {text}", flush=True), flags))
    try:
        return Run.model_validate(settings)
    except ValidationError as problem:
        first = problem.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-")
        raise WrongCommand(f"{flag} {first['input']}", why=str(first["msg"])) from None

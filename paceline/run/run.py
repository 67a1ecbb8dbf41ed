"""Run: the whole description of a run, as values, as JSON and as a command.

It holds only what the user set; the meaning of None is decided where the value is used.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paceline.cluster.hosts import mapped, read_cluster, read_hostfile, read_hosts
from paceline.cluster.lab.lab import read_lab
from paceline.cluster.launchers import MENU as LAUNCHERS
from paceline.cluster.launchers._launcher import Launcher
from paceline.cluster.seats import cluster_of, seats_on
from paceline.errors import WrongCommand
from paceline.run.fields import (
    LARGEST_NUMBER,
    LARGEST_SEED,
    LONGEST_WAIT,
    RANKS,
    SAMPLES,
    STEPS,
    THREADS,
    About,
    Change,
    Kind,
)
from paceline.run.older import renamed
from paceline.run.reference import REFERENCES, ReferenceTraits
from paceline.types import Cluster, Host

SIZE, STRATEGY, AXIS, PLACE = Kind.SIZE, Kind.STRATEGY, Kind.AXIS, Kind.PLACE
WORK, LENGTH, LAUNCHER = Kind.WORK, Kind.LENGTH, Kind.LAUNCHER


def field(default: Any, kind: Kind, help: str, **known: Any) -> Any:
    """Make a field of Run with its default and its description."""
    return Field(default, json_schema_extra={"about": cast(Any, About(kind=kind, help=help, **known))})


class Run(BaseModel):
    """One configuration. Flags, checks and docs are all made from the description of each field here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = field(
        1, SIZE, "Number of workers.", flags=("-np", "--workers"), least=1, most=RANKS, unit="worker", race="grid"
    )
    strategy: str | None = field(
        None,
        STRATEGY,
        "A published strategy by name: see paceline strategies.",
        published=("--dist-optimizer", "--variable-update"),
        unset="allreduce",
    )
    rule: str | None = field(None, AXIS, "What a worker sends, and when: grad, atc(every=8), diloco.", unset="grad")
    exchange: str | None = field(
        None, AXIS, "How workers combine what they send: allreduce, ps, neighbor(ring).", unset="allreduce"
    )
    topology: str | None = field(
        None, AXIS, "Which workers average with each other, for the exchanges neighbor and window: ring, exp2."
    )
    schedule: str | None = field(
        None, AXIS, "How gradients are cut into messages: fusion(mb=25), wfbp, mgwfbp.", unset="fusion"
    )
    compressor: str | None = field(
        None,
        AXIS,
        "How messages are made smaller: cast(bf16), sign, feedback(topk(ratio=0.01)).",
        published=("--compress",),
        unset="none",
    )
    membership: str | None = field(
        None, AXIS, "Whether workers may die and join during a run: fixed, elastic(min=1, max=8).", unset="fixed"
    )
    comm: str = field("auto", PLACE, "What moves the bytes: auto, shm (shared memory), node, tcp, gloo or nccl.")
    socket_buffer: int = field(
        0, PLACE, "Bytes of each socket buffer of --comm tcp; with 0 the kernel chooses.", least=0
    )
    nodes: str | None = field(None, PLACE, "Treat this host as several nodes: 2x4 is 2 nodes with 4 workers each.")
    profile: str | None = field(
        None, PLACE, "Plan messages with the layer times in this record or profile, instead of measuring them."
    )
    launcher: str | None = field(
        None,
        LAUNCHER,
        "What starts the processes: local, debug, ssh, slurm, ray, kubernetes.",
        unset="local, or ssh with -H",
        changes=(),
    )
    hosts: str | None = field(
        None, LAUNCHER, "Hosts and how many workers each takes: a:4,b:4.", flags=("-H", "--hosts"), changes=()
    )
    hostfile: str | None = field(None, LAUNCHER, "File with one host per line: node1:4, or node1 slots=4.", changes=())
    cluster_file: str | None = field(
        None,
        LAUNCHER,
        "TOML file with hosts, slots, interface, python, environ and more.",
        flags=("--cluster",),
        changes=(),
    )
    map_by: str = field(
        "slot",
        LAUNCHER,
        "Place ranks on one host after the other (slot), on hosts in rotation (node), or by a file (rankfile:FILE).",
        changes=(),
    )
    network_interface: str | None = field(
        None, LAUNCHER, "Network interface that every host uses for the exchange, such as eth1.", changes=()
    )
    lab: str | None = field(
        None,
        LAUNCHER,
        "Run on virtual hosts with limited links inside this machine (needs root): lab(hosts=4, bandwidth=1gbit).",
        changes=(),
    )
    cpus: float | None = field(
        None,
        LAUNCHER,
        "Limit each worker to this many cores, such as 0.3 (needs root).",
        least=0.01,
        most=THREADS,
        why="a worker gets at least 0.01 of a core, and at most 4,096",
    )

    model: str = field(
        "resnet50",
        WORK,
        "A model from `paceline models`, torchvision:NAME, or your package.module:function.",
        race="grid",
    )
    classes: int | None = field(
        None, WORK, "Number of classes.", unset="the model's", least=1, most=SAMPLES, unit="class", samples="img"
    )
    image_size: int | None = field(
        None,
        WORK,
        "Pixels per side of an image.",
        unset="the model's",
        least=1,
        most=1 << 16,
        unit="pixel",
        samples="img",
    )
    sequence_length: int | None = field(
        None, WORK, "Tokens per sequence.", unset="the model's", least=1, most=SAMPLES, unit="token", samples="sequence"
    )
    batch_size: int | None = field(
        None,
        WORK,
        "Samples per worker in one backward pass.",
        flags=("--batch-size", "--batch"),
        unset="32",
        least=1,
        most=SAMPLES,
        unit="sample",
        race="grid",
    )
    global_batch: int | None = field(
        None,
        WORK,
        "Samples of all workers per update, instead of --batch-size.",
        least=1,
        most=1 << 30,
        unit="sample",
        changes=("result",),
        race="grid",
    )
    source: str = field(
        "fake(device)",
        WORK,
        "Where samples come from: fake(device), fake(cpu), idx(FOLDER), tfrecord(FOLDER), imagefolder(FOLDER), ...",
        changes=("work",),
    )
    optimizer: str = field("sgd(lr=0.01, momentum=0.9)", WORK, "Any optimizer of torch.optim with its settings.")
    lr_schedule: str | None = field(
        None,
        WORK,
        "How the learning rate changes: constant, steps(at=30/60/80) or cosine. Optional: warmup=EPOCHS; base=RATE "
        "is multiplied by (global batch / 256).",
        unset="the optimizer's rate",
        changes=("result",),
    )
    label_smoothing: float = field(
        0.0, WORK, "Share of each label that is spread over all classes.", least=0, most=1, changes=("result",)
    )
    memory_format: Literal["contiguous", "channels_last"] = field(
        "contiguous", WORK, "Layout of images in memory: contiguous or channels_last.", changes=("work",)
    )
    precision: Literal["fp32", "bf16", "fp16"] = field(
        "fp32", WORK, "fp32, or autocast to bf16 or fp16 (fp16 also scales the loss)."
    )
    compile: bool = field(
        False,
        WORK,
        "Compile the model with torch.compile (needs g++).",
        published=("--use-xla-compile",),
        changes=("work",),
    )
    accumulate: int = field(1, WORK, "Backward passes per update.", least=1, most=1_000_000, unit="backward")
    clip_norm: float | None = field(
        None,
        WORK,
        "Clip the mean gradient to this global norm.",
        above=0,
        most=LARGEST_NUMBER,
        why="a norm is above 0, and finite",
    )
    compute: str = field(
        "real",
        WORK,
        "real: run forward and backward. replay(FILE, scale=1): sleep for the layer times in a profile or "
        "record. replay(MODEL, step=SECONDS): sleep for this step time, divided among the layers of a listed model.",
    )

    steps: int | None = field(None, LENGTH, "Updates in each repeat.", unset="10", least=1, most=STEPS, unit="step")
    epochs: int | None = field(
        None, LENGTH, "Passes over the source, instead of --steps.", least=1, most=STEPS, unit="epoch"
    )
    target: float | None = field(
        None,
        LENGTH,
        "With --epochs: stop after the epoch that reaches this accuracy.",
        above=0,
        most=1,
        why="an accuracy is above 0, and at most 1",
    )
    checkpoint: str | None = field(
        None, LENGTH, "With --epochs: save checkpoints in this folder.", race="grid", changes=()
    )
    every: int | None = field(
        None, LENGTH, "Updates between checkpoints.", unset="an epoch", least=1, most=STEPS, unit="update", race="grid"
    )
    resume: bool = field(False, LENGTH, "Continue from the last checkpoint in the folder of --checkpoint.", race="grid")
    warmup: int = field(5, LENGTH, "Updates before the measurement starts; none with --epochs.", least=0, most=STEPS)
    repeats: int = field(
        5,
        LENGTH,
        "How many times --steps updates are measured; the error bar is computed over these repeats.",
        least=1,
        most=1_000_000,
        unit="repeat",
    )
    seed: int = field(
        0, LENGTH, "Random seed for initial parameters and sample order.", least=0, most=LARGEST_SEED, race="grid"
    )
    threads: int | None = field(
        None, LAUNCHER, "Compute threads per worker.", unset="cores / workers", least=1, most=THREADS, unit="thread"
    )
    restart: str | None = field(
        None,
        LAUNCHER,
        "With membership elastic, how often to restart workers that died: always, never, or at most N times in all.",
        unset="16",
        changes=(),
    )
    batches_per_task: int | None = field(
        None,
        LAUNCHER,
        "With membership elastic, number of steps in a task. After each task, slow workers get fewer shards.",
        unset="50",
        least=1,
        most=STEPS,
        unit="step",
        changes=(),
    )
    job: str | None = field(
        None,
        LAUNCHER,
        "With membership elastic, keep the journal of the job in this folder; a later start continues the job.",
        changes=(),
    )
    deadline: float = field(
        300.0,
        PLACE,
        "Stop the run when a worker has not answered for this many seconds.",
        above=0,
        most=LONGEST_WAIT,
        why=f"it must be above 0 seconds, and at most {LONGEST_WAIT:,}",
    )

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, values: Any) -> Any:
        """Accept settings under the names that they had in older records and scripts."""
        return renamed(values) if isinstance(values, dict) else values

    @property
    def text(self) -> str:
        """The command that repeats this run."""
        return self.command()

    def command(self, chosen: Collection[str] = ()) -> str:
        """Return the command that repeats this run; it names `chosen` fields, and those that are not the default."""
        words = ["paceline", "run", "-np", str(self.workers)]
        changed = self.model_dump(exclude={"workers"}, exclude_defaults=True)
        for name in Run.model_fields:
            value = getattr(self, name)
            if name in changed or (name in chosen and name != "workers" and value is not None and value is not False):
                words += [flag_of(name)] if value is True else [flag_of(name), _written(value)]
        return shlex.join(words)

    def with_(self, **changes: Any) -> Run:
        return Run.model_validate({**self.model_dump(), **renamed(changes)})

    @property
    def reference(self) -> ReferenceTraits | None:
        """The reference that this run measures instead of a strategy, or None."""
        return REFERENCES.get(self.strategy or "")

    @property
    def cluster(self) -> Cluster:
        """The placement of ranks: on one host, on hosts of a lab, or on simulated nodes (`2x4`: 2 nodes of 4 ranks)."""
        hosts = hosts_of(self)
        if hosts:
            return cluster_of(seats_on(mapped(hosts, _countable(max(1, self.workers)), self.map_by)))
        if self.nodes is not None and self.lab is None:
            count, _, each = self.nodes.partition("x")
            if not (count.isdecimal() and each.isdecimal() and len(count) + len(each) < 20):
                raise WrongCommand(f"--nodes {self.nodes}", why="it is nodes x ranks of each", remedy="--nodes 2x2")
            ranks = _countable(int(count) * int(each))
            return Cluster(tuple(rank // int(each) for rank in range(ranks)))
        workers = _countable(max(1, self.workers))
        return Cluster.of_one_host(workers) if self.lab is None else read_lab(self.lab).cluster(workers)

    @property
    def per_worker(self) -> int:
        """Samples of one worker per backward pass."""
        if self.batch_size is not None:
            return self.batch_size
        if self.global_batch is not None:
            return self.global_batch // max(1, self.workers * self.accumulate)
        return 32

    @property
    def samples_per_step(self) -> int:
        """Samples of all workers per update."""
        return self.per_worker * self.workers * self.accumulate


def hosts_of(run: Run) -> tuple[Host, ...]:
    """Return the hosts from one of three flags, or from the launcher. Return none if the run is on this machine."""
    chosen = [name for name in ("hosts", "hostfile", "cluster_file") if getattr(run, name)]
    if len(chosen) > 1:
        raise WrongCommand(
            f"{flags_of(chosen)}", why="each of them names the hosts", remedy=f"give {flag_of(chosen[0])}"
        )
    if run.hosts:
        hosts = read_hosts(run.hosts)
    elif run.hostfile:
        hosts = read_hostfile(Path(run.hostfile))
    elif run.cluster_file:
        hosts = read_cluster(Path(run.cluster_file))
    else:
        hosts = _hosts_of_launcher(run.launcher)
    if run.network_interface:
        hosts = tuple(replace(host, interface=run.network_interface) for host in hosts)
    return hosts


def _hosts_of_launcher(text: str | None) -> tuple[Host, ...]:
    """Return the hosts that a launcher finds by itself: those of the allocation that this process runs in."""
    if text is None:
        return ()
    launcher: Launcher = LAUNCHERS.make(text)
    return launcher.hosts(os.environ)


def about(name: str) -> About:
    """Return the description of a field."""
    return cast(dict[str, About], Run.model_fields[name].json_schema_extra)["about"]


def flag_of(name: str) -> str:
    """Return the flag of a field of Run, or of any other parameter of a verb."""
    flags = about(name).flags if name in Run.model_fields else ()
    return flags[0] if flags else "--" + name.replace("_", "-")


def flags_of(names: Iterable[str]) -> str:
    return ", ".join(flag_of(name) for name in names)


def fields(*kinds: Kind) -> tuple[str, ...]:
    """Return the names of the fields of these kinds."""
    return tuple(name for kind in kinds for name in Run.model_fields if about(name).kind is kind)


def changing(effect: Change) -> tuple[str, ...]:
    """Return the names of the fields with this effect on a run."""
    return tuple(name for name in Run.model_fields if effect in about(name).effects)


AXES = fields(AXIS)
CHOSEN = fields(STRATEGY, AXIS)  # how gradients travel: a bundle by name, axes, or both
TO_SCRIPTS = fields(STRATEGY, AXIS, PLACE)  # settings that reach join and wrap in a user's script
TO_LAUNCHER = fields(LAUNCHER)  # settings of the launcher, which a script does not see
# Shapes of samples; each model takes some of them.
SHAPES = tuple(name for name in Run.model_fields if about(name).samples)
GRID = tuple(name for name in Run.model_fields if about(name).in_grid)  # decided by a race for each of its cells


def _countable(ranks: int) -> int:
    if ranks > RANKS:
        raise WrongCommand(f"{ranks:,} ranks", why=f"more than {RANKS:,} are not counted with", remedy="-np 8")
    return ranks


def _written(value: Any) -> str:
    """Format a value; a float without a fraction is written as a whole number."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

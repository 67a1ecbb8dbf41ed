"""Run: the whole description of a run, as values, as JSON and as one line of text.

Only what the user asked for is in it; what None means is decided where the value is used.
"""

from __future__ import annotations

import shlex
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from paceline.errors import WrongCommand
from paceline.lab.lab import read_lab
from paceline.types import Cluster

# Fields of a run by what they are about; those that no list names describe the work itself.
AXES = ("rule", "exchange", "topology", "schedule", "compress", "membership")
CHOSEN = ("strategy", *AXES)  # how gradients travel: a bundle by name, axes, or both
TO_SCRIPTS = (*CHOSEN, "comm", "nodes", "profile", "deadline")  # what reaches join and wrap in a user's script
TO_LAUNCHER = ("threads", "lab", "cpus")  # what the launcher does for a script, which need not know of it
REFERENCES = ("ddp", "limit")  # raced against; not made of axes
MOST = 1 << 20  # ranks: more than anybody has, and few enough to list


class Run(BaseModel):
    """One configuration. A field is named as its flag on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = 1
    strategy: str | None = None
    rule: str | None = None
    exchange: str | None = None
    topology: str | None = None
    schedule: str | None = None
    compress: str | None = None
    membership: str | None = None
    comm: str = "auto"
    nodes: str | None = None
    profile: str | None = None
    lab: str | None = None
    cpus: float | None = None

    model: str = "resnet50"
    classes: int | None = None
    image_size: int | None = None
    sequence_length: int | None = None
    batch_size: int | None = None
    global_batch: int | None = None
    source: str = "fake(device)"
    optimizer: str = "sgd(lr=0.01, momentum=0.9)"
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    accumulate: int = 1
    clip_norm: float | None = None
    compute: str = "real"

    steps: int | None = None
    epochs: int | None = None
    warmup: int = 5
    repeats: int = 5
    seed: int = 0
    threads: int | None = None
    deadline: float = 300.0

    @property
    def text(self) -> str:
        """The command that does this run again."""
        words = ["paceline", "run", "-np", str(self.workers)]
        for name, value in self.model_dump(exclude={"workers"}, exclude_defaults=True).items():
            flag = "--" + name.replace("_", "-")
            words += [flag] if value is True else [flag, _written(value)]
        return shlex.join(words)

    def with_(self, **changes: Any) -> Run:
        return Run.model_validate({**self.model_dump(), **changes})

    @property
    def reference(self) -> str | None:
        """The reference that is raced instead of a strategy of ours, if one is."""
        return self.strategy if self.strategy in REFERENCES else None

    @property
    def cluster(self) -> Cluster:
        """Where ranks are: on one host, on hosts of a lab, or on pretended nodes (`2x4` is two of four ranks each)."""
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
        """Samples of one worker per backward."""
        if self.batch_size is not None:
            return self.batch_size
        if self.global_batch is not None:
            return self.global_batch // max(1, self.workers * self.accumulate)
        return 32

    @property
    def samples_per_step(self) -> int:
        """Samples of all workers per update."""
        return self.per_worker * self.workers * self.accumulate


def _countable(ranks: int) -> int:
    if ranks > MOST:
        raise WrongCommand(f"{ranks:,} ranks", why=f"more than {MOST:,} are not counted with", remedy="-np 8")
    return ranks


def _written(value: Any) -> str:
    """As short as it can be and still the same number."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)

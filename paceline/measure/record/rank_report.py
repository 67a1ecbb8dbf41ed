"""The report of one rank: all its measurements, which its process sends to the process that makes the record.

worker or steplog   ->   RankReport   ->   folder/rank-K.json or steps-K.json   ->   RankReport   ->   make_record
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TypeAlias, TypedDict

from paceline.cluster.environment import Environment
from paceline.measure.record.events import EventRow
from paceline.measure.record.figures import InputPart, Json, NetworkPart, PlanPart

BEGAN = "measured"  # begins the names of files that mark scripts whose updates are timed
MetricRows: TypeAlias = dict[str, list[tuple[int, float]]]  # what a script logged: updates so far, and the value


class Coding(TypedDict, total=False):
    """Cost of compression per step: bytes before and after it, seconds of encoding and decoding."""

    dense: float
    coded: float
    encode: float
    decode: float


class Staleness(TypedDict, total=False):
    """The bound of rule server, and when the gradients of each step left and its parameters came back."""

    bound: float | None
    pushed: list[float]
    pulled: list[float]


class GpuReport(TypedDict):
    """The busy share and the largest memory of a GPU; None without one."""

    use: float | None
    memory: int | None


class _Grade(TypedDict):
    epoch: int
    value: float
    loss: float
    samples: int


class Grade(_Grade, total=False):
    """An evaluation on the test part of the source; epoch is 0 at the end of a run with --steps."""

    top5: float  # part of the samples whose class is among the five best
    seconds: float  # seconds of training until then


class Replicas(TypedDict, total=False):
    """Whether all ranks hold the same bits, and the largest distance of a rank from their mean."""

    identical: bool
    distance: float | None


def _no_gpu() -> GpuReport:
    return {"use": None, "memory": None}


@dataclass(frozen=True)
class RankReport:
    """The report of one rank. Times are in seconds, sizes in bytes.

    `steps` and `parts` have one entry per measured step, `seconds` one per block. `samples` are the samples of one
    block. A script (see steplog) fills `batch` and `settings`, and leaves the division into blocks to the launcher; it
    has no meetings, losses, events or FLOPs.
    """

    rank: int
    device: str
    comm: str
    steps: list[float]
    parts: dict[str, list[float]]
    received_per_step: list[float]
    pushed_per_step: list[float]
    cpu_seconds_per_step: float
    pss_peak: int
    rss_peak: int
    unit: str = ""
    batch: int = 0
    samples: int = 0
    seconds: list[float] = field(default_factory=list)
    warmup: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracy: list[Grade] = field(default_factory=list)
    events: list[EventRow] = field(default_factory=list)
    events_exposed: float = 0.0
    meetings: list[tuple[float, float]] = field(default_factory=list)
    flops: float | None = None
    peak: float | None = None
    gpu: GpuReport = field(default_factory=_no_gpu)
    coding: Coding = field(default_factory=Coding)
    staleness: Staleness = field(default_factory=Staleness)
    replicas: Replicas = field(default_factory=Replicas)
    plan: PlanPart = field(default_factory=PlanPart)
    profile: dict[str, Json] | None = None
    network: NetworkPart = field(default_factory=NetworkPart)
    environment: Environment = field(default_factory=Environment)
    notes: list[str] = field(default_factory=list)
    skipped: int = 0
    input: InputPart = field(default_factory=InputPart)  # requests to an object store, if samples come from one
    queued_seconds_per_step: float | None = None  # seconds in which threads were ready to run, but no core was free
    buckets: list[int] = field(default_factory=list)  # bytes of each bucket that DDP all-reduces in a step
    metrics: MetricRows = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # strategy and axes that `wrap` has used in a script
    # Seconds after each turn for finishing exchanges that cross the step.
    drains: list[float] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps({one.name: getattr(self, one.name) for one in fields(self)})


def read_report(path: Path) -> RankReport:
    """Return the report that a rank of the same version of paceline has written."""
    values = json.loads(path.read_text())
    events: list[EventRow] = [(at, kind, step, what, detail) for at, kind, step, what, detail in values.pop("events")]
    meetings: list[tuple[float, float]] = [(entered, left) for entered, left in values.pop("meetings")]
    return RankReport(**values, events=events, meetings=meetings)

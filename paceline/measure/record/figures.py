"""The parts of a record, each with the type of its fields. docs/concepts/record.md explains them.

To add a figure, add a field here: the part then accepts it, refuses a wrong type, and mypy knows it. Parts are plain
dicts, in the file as in memory. A field may be missing (`total=False`) unless it is in a class without that; fields of
newer versions are kept as they are. The part `environment` is typed where it is made, in cluster/environment.py.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import ConfigDict, Field, JsonValue, with_config
from typing_extensions import TypedDict

Json: TypeAlias = JsonValue
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Size = Annotated[int, Field(ge=0)] | Amount  # stays the integer that it is in the file
Filled = Annotated[list[Amount], Field(min_length=1)]
Sizes = Annotated[list[Size], Field(min_length=1)]


@with_config(ConfigDict(extra="allow", strict=True))
class Part(TypedDict):
    """A part of a record. Numbers must be numbers: the text "3" is refused."""


class Total(Part):
    """Samples per second of the whole job, with the interval over its steps."""

    mean: Positive
    low: Number | None
    high: Number | None
    confidence: Number
    error: Amount


class TotalRate(Total, total=False):
    median: Positive | None
    steps: int
    repeats: list[Positive]


class Rate(Part, total=False):
    total: TotalRate
    per_worker: list[Amount]


class Series(Part, total=False):
    """Seconds of every step, and the verdict about them."""

    warmup: list[Amount]
    seconds: list[Amount]
    start: int
    dropped_blocks: Annotated[int, Field(ge=0)]
    why: str | None
    judged: bool
    autocorrelation: float | None


class Metric(Part):
    """A figure that a script logged: the number of updates at each value, and the mean over ranks that logged it."""

    steps: list[Annotated[int, Field(ge=0)]]
    values: list[Number]
    ranks: Annotated[int, Field(ge=1)]


class Communication(Part, total=False):
    """Seconds of communication per step; None if a reference waits inside backward."""

    exposed: Number | None
    overlapped: Number | None
    in_flight: Number | None
    share: Number | None
    ratio: str | None


class TaskColumns(Part, total=False):
    """The columns of published tables, in seconds per `batches` batches."""

    batches: int
    task: Number
    allreduce: Number | None
    in_flight: Number | None
    pack: Number | None
    update: Number


class Bytes(Part, total=False):
    """Bytes per step of each rank; with a compressor also before and after compression."""

    sent_per_step: list[Size]
    received_per_step: Sizes
    per_edge: list[list[Size]]
    before_compression_per_step: Sizes
    after_compression_per_step: Sizes
    buckets: list[Size]  # only DDP: bytes of each bucket; sent and received bytes are computed from them, for a ring


class PeakKind(Part):
    peak_is: str


class Flops(PeakKind, total=False):
    """FLOPs of a sample, and the share of the peak that each worker reached."""

    per_sample: Size | None
    peak: list[Size | None]
    utilization: list[Amount] | None


class Memory(Part, total=False):
    """Memory of each worker in a short start of its own, before a race in which contenders share processes."""

    pss_peak: Sizes
    rss_peak: list[Size]


class Resources(Part, total=False):
    """Memory, processor and GPU of each rank."""

    alone: Memory
    pss_peak: Sizes
    rss_peak: list[Size]
    cpu_seconds_per_step: list[Amount]
    cpu_use: list[Amount]
    gpu_use: list[Amount | None]
    gpu_memory: list[Size | None]
    flops: Flops | None
    encode_seconds_per_step: Filled
    decode_seconds_per_step: Filled


class InputPart(Part, total=False):
    """Requests to an object store, over all ranks: their number, the retries with reasons, and the bytes received."""

    requests: int
    retries: int
    nbytes: Size
    again: int
    reasons: dict[str, int]


class Speedup(Part):
    value: Number
    low: Number | None
    high: Number | None


class Efficiency(Part, total=False):
    """The rate divided by the number of workers and by the rate of one worker.

    `baseline` is the id of that worker's record.
    """

    value: Number
    low: Number | None
    high: Number | None
    confidence: Number
    baseline: str
    speedup: Speedup


class Tuning(Part, total=False):
    """The candidates of schedule auto, with seconds per step."""

    chosen: str
    seconds: dict[str, float]


class PlanPart(Part, total=False):
    """Schedule and chunks; if the schedule crosses the step, also what each chunk waits for."""

    schedule: str
    chunks: int | None
    nbytes: list[Size]
    lanes: int
    tuning: Tuning
    needs: Json
    urgency: Json


class LabName(Part):
    lab: str


class RequestedNetwork(LabName, total=False):
    """The network that `--lab` asked for."""

    hosts: int
    bandwidth: Size | None


class MeasuredLink(Part):
    latency: Amount
    bandwidth: Amount


class NetworkPart(Part, total=False):
    """The link as measured; in a lab also the goodput of each host in bytes per second."""

    requested: RequestedNetwork | None
    goodput: list[Amount]
    measured: MeasuredLink


class ReplicasPart(Part, total=False):
    """The distance between the models of ranks; it is NaN if the run diverged."""

    identical: bool
    distance: float | None


class StalenessPart(Part, total=False):
    """The bound of rule server, and the largest lead of a worker over the slowest."""

    bound: Size | None
    largest_lead: Size


class AccuracyPart(Part):
    """Accuracy and loss on the test part; NaN if the run diverged."""

    value: float
    loss: float
    samples: float


class Accuracy(AccuracyPart, total=False):
    epoch: float
    top5: float
    seconds: float


class Incident(Part):
    """An event worth a note, and how often it happened."""

    what: str
    count: int


class TimedIncident(Incident, total=False):
    """An incident of an elastic job: when, who, how it was noticed, seconds of its phases, shards computed again."""

    at: Number
    member: str
    rank: int
    generation: int
    how: str
    seconds: Number
    detect: Number
    reconfigure: Number
    commit: Number
    shards: int


class ElasticPart(Part, total=False):
    """An elastic job: its groups, and (seconds, committed steps per second, members) over time.

    `shards` has the virtual shards of each member of the last group; `deals` counts groups that were formed only to
    give slow members fewer of them. A job that was disturbed on purpose has the numbers of workers that were killed
    and that joined, and of samples that no commit has used (`lost`), or more than one (`repeated`).
    """

    killed: int
    joined: int
    lost: int
    repeated: int
    generations: int
    members: int
    rollbacks: int
    steps: int
    shards: list[int]
    deals: int
    rate: list[list[Number]]


class ComparedFigure(Part):
    what: str
    expected: Number
    measured: Number | None
    verdict: str


class Compared(ComparedFigure, total=False):
    """An expected figure of an experiment beside the measured one."""

    low: Number | None
    high: Number | None


class ExperimentPart(Part, total=False):
    """The fields of `--experiment FILE` as they were written, and each expected figure beside the measured one."""

    compared: list[Compared]


class RacePart(Part, total=False):
    """The place of a run in a race or in `reproduce`: its round, sitting, heat and label."""

    name: str
    round: int
    sitting: str
    label: str
    heat: str
    same_result: bool | None
    shared: bool  # contenders took turns in the same processes; each repeat of the rate is one turn
    mates: list[str]  # labels of the contenders that took turns with it
    pairs: int  # comparisons that share the error probability of a race; absent with fixed rounds
    margin: Number  # percent; contenders that differ by less are level
    seconds: Number  # seconds of the whole start
    alone: str  # why it ran isolated


class BusyPart(Part, total=False):
    """How busy the machine was with other work during the run; absent if the kernel does not report it."""

    load: Number  # load average of the minute before the run
    steal: Number  # share of the cores' time that the host gave to others
    other_cores: Number  # cores that other processes used
    starved: Number  # share of a step in which a worker waited for a free core; the largest of all workers
    cores: int


class Clock(Part, total=False):
    """The offset of each rank's clock from rank 0's, and its error."""

    how: str
    offsets: list[float]
    within: list[float]

"""The figures of a record as its readers rely on them: a file without them is damaged, and named instead of shown.

A run that failed has none. What stands here beside them may be anything: fields are added within a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEEPEST = 64  # lists and objects inside each other; records have fewer than ten
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Filled = Annotated[list[Amount], Field(min_length=1)]


class Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class Numbers(Part):
    """Finite numbers by name."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number] = Field(init=False)


class TotalPart(Part):
    mean: Positive
    median: Positive | None = None
    low: Number | None
    high: Number | None
    confidence: Number
    error: Amount
    repeats: list[Positive] = []


class Rate(Part):
    total: TotalPart
    per_worker: list[Amount] = []


class Step(Numbers):
    median: Amount
    p95: Amount
    max: Amount


class Breakdown(Numbers):
    step: Positive


class Series(Part):
    """Seconds of every step, and what was found in them."""

    warmup: list[Amount] = []
    seconds: list[Amount] = []
    dropped_blocks: Annotated[int, Field(ge=0)] = 0
    why: str | None = None
    judged: bool = True


class Communication(Part):
    share: Number | None = None
    overlapped: Number | None = None
    ratio: str | None = None


class Requested(Part):
    lab: str


class NetworkPart(Part):
    requested: Requested | None = None
    goodput: list[Amount] = []

    @model_validator(mode="after")
    def _a_lab_has_its_goodput(self) -> NetworkPart:
        if self.requested is not None and "goodput" not in self.model_fields_set:
            raise ValueError("requested stands without goodput")
        return self


class Replicas(Part):
    """How far models of ranks are apart; the distance is NaN if the run diverged."""

    identical: bool
    distance: float | None = None


class PlanPart(Part):
    chunks: int | None = None


class Incident(Part):
    what: str
    count: int


class Bytes(Part):
    received_per_step: Filled
    before_compression_per_step: Filled | None = None
    after_compression_per_step: Filled | None = None


class Flops(Part):
    peak_is: str
    utilization: list[Amount] | None = None


class Resources(Part):
    pss_peak: Filled
    rss_peak: list[Amount] = []
    cpu_use: list[Amount] = []
    flops: Flops | None = None
    encode_seconds_per_step: Filled | None = None
    decode_seconds_per_step: Filled | None = None


class Speedup(Part):
    value: Number
    low: Number | None
    high: Number | None


class Efficiency(Speedup):
    baseline: str
    speedup: Speedup


class Accuracy(Part):
    """Accuracy and loss on the test part; NaN if the run diverged."""

    value: float
    loss: float
    samples: float


class Compared(Part):
    what: str
    expected: Number
    measured: Number | None
    verdict: str


class ExperimentPart(Part):
    compared: list[Compared] = []


class Environment(Part):
    cores: int | None = None
    packages: dict[str, Any] | None = None
    variables: dict[str, Any] = {}


class RacePart(Part):
    name: str = ""
    round: int = 0
    sitting: str = ""
    label: str = ""
    heat: str = ""
    same_result: bool | None = None


class Failed(Part):
    """The fields that are read from every record."""

    race: RacePart | None = None
    environment: Environment | None = None
    rate: Rate | None = None


class EndedPart(Failed):
    """The fields that are read from the record of a run that did not fail."""

    workers: Annotated[int, Field(ge=1)]
    rate: Rate
    step: Step
    breakdown: Breakdown
    bytes: Bytes
    resources: Resources
    series: Series | None = None
    communication: Communication | None = None
    network: NetworkPart | None = None
    replicas: Replicas | None = None
    plan: PlanPart | None = None
    incidents: list[Incident] = []
    efficiency: Efficiency | None = None
    accuracy: list[Accuracy] = []
    experiment: ExperimentPart | None = None

    @model_validator(mode="after")
    def _coding_is_whole(self) -> EndedPart:
        coded, spent = self.bytes, self.resources
        told = (coded.before_compression_per_step, coded.after_compression_per_step)
        if any(told) and not all((*told, spent.encode_seconds_per_step, spent.decode_seconds_per_step)):
            raise ValueError("bytes and seconds of compression stand together")
        return self


def check_figures(values: Mapping[str, Any]) -> None:
    """A ValidationError that names the first figure that is missing or none."""
    told = {name: value for name, value in values.items() if value != {}}
    (Failed if values.get("verdict") == "failed" else EndedPart).model_validate(told)


def is_too_deep(text: bytes, value: Any) -> bool:
    """Whether a value as JSON has it, and its text, are nested deeper than a record can be."""
    return _may_be_deep(text) and _is_deep(value)


def _may_be_deep(text: bytes) -> bool:
    """By brackets alone, a level at a time: quick, and only wrong where a string has brackets in it."""
    brackets = text.translate(None, _OTHERS)
    for _ in range(DEEPEST):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return True


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEEPEST):
        if not level:
            return False
        parts = [outer.values() if isinstance(outer, dict) else outer for outer in level]
        level = [part for inner in parts for part in inner if isinstance(part, (dict, list))]
    return True

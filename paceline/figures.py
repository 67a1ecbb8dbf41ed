"""The figures of a record as its readers rely on them: a file without them is damaged, and named instead of shown.

A run that failed has none. What stands here beside them may be anything: fields are added within a schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

DEEPEST = 64  # lists and objects inside each other; records have fewer than ten
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Part(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Numbers(Part):
    """Finite numbers by name."""

    __pydantic_extra__: dict[str, Number] = Field(init=False)


class Total(Part):
    mean: Positive
    median: Positive | None = None
    low: Number | None
    high: Number | None
    confidence: Number
    error: Amount
    repeats: list[Positive] = []


class Rate(Part):
    total: Total
    per_worker: list[Amount] = []


class Step(Numbers):
    median: Amount
    p95: Amount
    max: Amount


class Breakdown(Numbers):
    step: Positive


class Bytes(Part):
    received_per_step: list[Amount]


class Flops(Part):
    peak_is: str
    utilization: list[Amount] | None = None


class Resources(Part):
    pss_peak: Annotated[list[Amount], Field(min_length=1)]
    rss_peak: list[Amount] = []
    cpu_use: list[Amount] = []
    flops: Flops | None = None


class Speedup(Part):
    value: Number
    low: Number | None
    high: Number | None


class Efficiency(Speedup):
    baseline: str
    speedup: Speedup


class Accuracy(Part):
    """Of a run that diverged these are NaN."""

    value: float
    loss: float
    samples: float


class Compared(Part):
    what: str
    expected: Number
    measured: Number | None
    verdict: str


class Experiment(Part):
    compared: list[Compared] = []


class Environment(Part):
    cores: int | None = None
    packages: dict[str, Any] | None = None
    variables: dict[str, Any] = {}


class Race(Part):
    name: str = ""
    round: int = 0
    sitting: str = ""
    label: str = ""
    heat: str = ""
    same_result: bool | None = None


class Failed(Part):
    """What is read of every record."""

    race: Race = Race()
    environment: Environment = Environment()
    rate: Rate | None = None


class Ended(Failed):
    """What is read of a run that ended well."""

    workers: Annotated[int, Field(ge=1)]
    rate: Rate
    step: Step
    breakdown: Breakdown
    bytes: Bytes
    resources: Resources
    efficiency: Efficiency | None = None
    accuracy: list[Accuracy] = []
    experiment: Experiment = Experiment()


def check_figures(values: Mapping[str, Any]) -> None:
    """A ValidationError that names the first figure that is missing or none."""
    told = {name: value for name, value in values.items() if value != {}}
    (Failed if values.get("verdict") == "failed" else Ended).model_validate(told)


def is_too_deep(value: Any) -> bool:
    """Whether a value as JSON has it is nested deeper than a record can be."""
    level = [value]
    for _ in range(DEEPEST):
        level = [part for outer in level if isinstance(outer, (dict, list)) for part in _parts(outer)]
        if not level:
            return False
    return True


def _parts(outer: dict[str, Any] | list[Any]) -> list[Any]:
    return list(outer.values()) if isinstance(outer, dict) else outer

"""The description of an experiment by its author, kept in the record; its fields are those of published reports.

description = "ResNet-50 from the object store, host network"
storage = "object store"
expected = { rate = 430, tolerance = 0.05 }
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat

from paceline.files.toml import read_toml


class Expected(BaseModel):
    """An expected result. It is met if it is within `tolerance` of the figure, or inside the measured interval."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate: PositiveFloat | None = None
    per_worker: PositiveFloat | None = None
    efficiency: PositiveFloat | None = None
    step: PositiveFloat | None = None
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.05


class InputData(BaseModel):
    """The data that was read, and its size."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    bucket: str = ""
    objects: int | None = None
    size: int | str | None = None


class Experiment(BaseModel):
    """A description of an experiment by its author. All fields are optional.

    The record describes its machine by itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    time: str = ""
    storage: str = ""
    endpoint: str = ""
    workload: str = ""
    code: str = ""
    cluster: str = ""
    servers: int | None = None
    addresses: list[str] = []
    gateway: bool | None = None
    machine: str = ""
    results: str = ""
    expected: Expected | None = None
    store: dict[str, Any] = {}
    data: InputData | None = None
    summary: str = ""
    next_steps: str = ""


def read_experiment(path: Path) -> Experiment:
    return read_toml(path, Experiment)


def with_comparison(experiment: Experiment, figures: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Return the fields that are set, with each expected figure beside the measured one."""
    values = experiment.model_dump(mode="json", exclude_defaults=True)
    if experiment.expected is not None:
        values["compared"] = compared(experiment.expected, figures)
    return values


def compared(
    expected: Expected, figures: Mapping[str, Mapping[str, float | None]]
) -> list[dict[str, float | str | None]]:
    """Return one row per expected figure: as expected, below, above, or not measured."""
    rows: list[dict[str, float | str | None]] = []
    for name in ("rate", "per_worker", "efficiency", "step"):
        wanted = getattr(expected, name)
        if wanted is not None:
            measured = figures.get(name, {})
            verdict = _judged(wanted, measured, expected.tolerance)
            rows.append({"what": name, "expected": wanted, **_row(measured), "verdict": verdict})
    return rows


def _row(measured: Mapping[str, float | None]) -> dict[str, float | None]:
    return {"measured": measured.get("value"), "low": measured.get("low"), "high": measured.get("high")}


def _judged(wanted: float, measured: Mapping[str, float | None], tolerance: float) -> str:
    value, low, high = measured.get("value"), measured.get("low"), measured.get("high")
    if value is None:
        return "not measured"
    inside = low is not None and high is not None and low <= wanted <= high
    if inside or abs(value - wanted) <= tolerance * wanted:
        return "as expected"
    return "below" if value < wanted else "above"

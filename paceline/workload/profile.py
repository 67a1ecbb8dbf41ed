"""Profiles: how long each part of a model's step takes on one rank, without communication.

    forward   |0 ... forward[k]: the layer of slot k starts  ... forward_seconds|
    backward  |0 ... ready[k]: the gradient of slot k is ready  ... backward|

Slots are in the order of the arena, in which gradients become ready. Schedules plan with a profile, and replayed
compute waits as long as it says. The file is JSON; the record of a run holds the same value under `profile`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.errors import WrongCommand
from paceline.files.read import read_text
from paceline.types import Layout, Link, Profile, Slot

SCHEMA: Literal[2] = 2  # version 1 had no shapes, and no seconds of update and packing
Seconds = float


class Tensor(BaseModel):
    """Name, size and shape of one slot of the layout. A shape of () says that it is not known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    numel: int = Field(ge=0)
    shape: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _the_shape_has_the_size(self) -> Tensor:
        if self.shape and (min(self.shape) < 0 or prod(self.shape) != self.numel):
            raise ValueError(f"{self.name} has shape {list(self.shape)} and {self.numel} elements")
        return self


class LinkTimes(BaseModel):
    """The cost of a link: a chunk of n bytes takes latency + n / bandwidth seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    latency: float = Field(ge=0, allow_inf_nan=False)
    bandwidth: float = Field(gt=0, allow_inf_nan=False)


class StepProfile(BaseModel):
    """Times of a step in seconds. `link` is the cost of a chunk in that run, if it was measured.

    update   the optimizer, after the exchange
    pack     moving gradients into the arena, for a whole step
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_: Literal[1, 2] = Field(default=SCHEMA, alias="schema")
    model: str = ""
    batch_size: int = Field(default=0, ge=0)
    layout: tuple[Tensor, ...] = Field(min_length=1)
    itemsize: int = Field(default=4, ge=1, le=16)
    forward: tuple[Seconds, ...]  # when the forward of each slot's layer starts
    forward_seconds: float = Field(ge=0, allow_inf_nan=False)
    ready: tuple[Seconds, ...]
    backward: float = Field(ge=0, allow_inf_nan=False)
    step: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    update: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    pack: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    link: LinkTimes | None = None

    @model_validator(mode="after")
    def _every_slot_has_its_times(self) -> StepProfile:
        for name in ("forward", "ready"):
            times = getattr(self, name)
            if len(times) != len(self.layout):
                raise ValueError(f"{name} has {len(times)} times for {len(self.layout)} tensors")
            if not all(0 <= seconds < float("inf") for seconds in times):
                raise ValueError(f"{name} has a time that is negative or not finite")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.layout)

    def measured_link(self) -> Link | None:
        return None if self.link is None else Link(self.link.latency, self.link.bandwidth)

    def to_dict(self) -> dict[str, Any]:
        return {**self.model_dump(mode="json", by_alias=True), "schema": SCHEMA}

    def for_layout(self, layout: Layout, source: str = "the profile") -> Profile:
        """Return these times for the slots of an arena, matched by name. Raises for the profile of another model."""
        at = {(tensor.name, tensor.numel): k for k, tensor in enumerate(self.layout)}
        lacking = [slot for slot in layout.slots if (slot.name, slot.numel) not in at]
        if lacking:
            raise WrongCommand(
                f"{source} is of another model",
                why=f"it has no {lacking[0].name} of {lacking[0].numel} elements",
                remedy="measure this model's own profile",
            )
        chosen = [at[slot.name, slot.numel] for slot in layout.slots]
        return Profile(layout, tuple(self.ready[k] for k in chosen), tuple(self.forward[k] for k in chosen))


def of_slots(slots: Sequence[Slot]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name=slot.name, numel=slot.numel, shape=slot.shape) for slot in slots)


def write(path: Path, profile: StepProfile) -> None:
    path.write_text(json.dumps(profile.to_dict(), indent=1) + "\n")


def read(path: Path) -> StepProfile:
    """Read a profile from its own file or from a record, which also holds the link."""
    try:
        return StepProfile.model_validate(_profile_in(json.loads(read_text(path))))
    except (WrongCommand, ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise WrongCommand(
            f"{path} is not a profile",
            why=_first(problem),
            remedy="the record of a run (paceline run --json FILE) has one",
        ) from None


def _profile_in(values: Any) -> Any:
    """Return the values of a profile, which may be in a record beside the measured link."""
    if not isinstance(values, dict) or "run" not in values:
        return values
    if not values.get("profile"):
        raise ValueError("the record has no profile")
    measured = (values.get("network") or {}).get("measured")
    return {**values["profile"], "link": measured or values["profile"].get("link")}


def _first(problem: Exception) -> str:
    if isinstance(problem, ValidationError):
        error = problem.errors()[0]
        where = ".".join(str(part) for part in error["loc"])
        return f"{where}: {error['msg']}" if where else str(error["msg"])
    return problem.why if isinstance(problem, WrongCommand) else str(problem)

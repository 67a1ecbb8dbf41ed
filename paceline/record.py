"""The record: one JSON per run, the only thing (with its event file) that reports read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.bench.redact import redacted, secrets_of
from paceline.errors import WrongCommand
from paceline.run import Run

SCHEMA = 1


class Record(BaseModel):
    """What one run leaves behind. Times are in seconds, sizes in bytes. docs/concepts/record.md explains each field.

    A run that failed has `failure` and none of the figures.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: int = SCHEMA
    kind: Literal["measured", "replayed", "forecast"] = "measured"
    id: str
    text: str
    time: str
    run: Run
    experiment: dict[str, Any] = {}
    environment: dict[str, Any]
    notes: list[str] = []
    verdict: Literal["steady", "unsteady", "failed"]
    failure: str | None = None
    workers: int
    device: str = ""
    unit: str = ""
    comm: str = ""
    rate: dict[str, Any] = {}
    step: dict[str, float] = {}
    series: dict[str, Any] = {}
    efficiency: dict[str, Any] = {}
    breakdown: dict[str, float] = {}
    communication: dict[str, Any] = {}
    task: dict[str, Any] = {}
    bytes: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    plan: dict[str, Any] = {}
    profile: dict[str, Any] | None = None
    network: dict[str, Any] = {}
    replicas: dict[str, Any] = {}
    staleness: dict[str, Any] = {}
    loss: list[float] = []
    accuracy: list[dict[str, float]] = []
    incidents: list[dict[str, Any]] = []
    logs: list[str] = []
    clock: dict[str, Any] = {}
    events: str | None = None

    def to_json(self) -> str:
        """Without what looks like a secret: a token in an address, a key in a line of a log."""
        values = redacted(self.model_dump(mode="json"), secrets_of(os.environ))
        values = {"schema": values.pop("schema_"), **values}
        return json.dumps(values, indent=1) + "\n"


def read(path: Path) -> Record:
    """A record from a file; another schema version or damage is named."""
    try:
        values = json.loads(path.read_text())
        version = values.pop("schema")
    except (OSError, ValueError, KeyError, AttributeError) as problem:
        raise WrongCommand(f"{path} is not a record", why=str(problem)) from None
    if version != SCHEMA:
        raise WrongCommand(f"{path} has schema {version}", why=f"this paceline reads schema {SCHEMA}")
    try:
        return Record(schema_=version, **values)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise WrongCommand(f"{path} is not a record", why=f"{where}: {first['msg']}") from None


def write(path: Path, text: str) -> None:
    """All of it or nothing."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def check_writable(path: Path, flag: str = "--json") -> None:
    """Refuse before the work what could not be written after it."""
    if path.is_dir():
        raise WrongCommand(f"{flag} {path}", why="it is a folder", remedy=f"{flag} {path / 'FILE'}")
    folder = path.parent
    if not folder.is_dir():
        raise WrongCommand(f"{flag} {path}", why=f"there is no folder {folder}", remedy=f"mkdir -p {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise WrongCommand(f"{flag} {path}", why="it cannot be written")

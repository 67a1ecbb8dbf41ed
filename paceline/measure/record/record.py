"""The record: one JSON per run, the only thing (with its event file) that reports read."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from paceline._version import VERSION
from paceline.errors import NoRoom, PacelineError, WrongCommand, short
from paceline.files.read import read_bytes
from paceline.files.redact import redacted, secrets_of
from paceline.measure.record.figures import check_figures, is_too_deep
from paceline.run.run import Run

SCHEMA = 1
TOO_DEEP = "it is nested too deeply"


class Record(BaseModel):
    """What one run leaves behind. Times are in seconds, sizes in bytes. docs/concepts/record.md explains each field.

    A run that failed has `failure` and none of the figures.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: int = Field(default=SCHEMA, alias="schema")
    kind: Literal["measured", "replayed", "forecast"] = "measured"
    id: str
    text: str
    time: str
    run: Run
    same_result: bool | None = None
    experiment: dict[str, Any] = {}
    race: dict[str, Any] = {}
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

    @property
    def turn(self) -> tuple[Any, ...] | None:
        """The round of a race that it ran in, in one sitting: what met the same slow minutes has the same turn."""
        return tuple(self.race.get(name) for name in ("name", "round", "sitting")) if self.race else None

    @property
    def outcome(self) -> str:
        """The verdict in words: too few steps to tell is not the same as unsteady."""
        return self.verdict if self.series.get("judged", True) else "not judged"

    def without_secrets(self) -> Record:
        """What others may see: no token in an address, no password in a command, no key in a line of a log."""
        values = self.model_dump(mode="json", by_alias=True)
        # Words of ours stay, whatever a variable holds: names of fields (an experiment has others), and some values.
        secrets = secrets_of(os.environ)
        told = {name: redacted(part, secrets, names=name == "experiment") for name, part in values.items()}
        told |= {name: values[name] for name in ("id", "time", "kind", "verdict")}
        told["run"] |= {name: values["run"][name] for name in ("memory_format", "precision")}
        return Record.model_validate(told)

    def to_json(self) -> str:
        return json.dumps(self.without_secrets().model_dump(mode="json", by_alias=True), indent=1) + "\n"


def read(path: Path) -> Record:
    """A record from a file; another schema version or damage is named.

    Within a schema fields are only added, so one that is not known here is left out. A setting of the run that is not
    known is refused: it changed what was run.
    """
    return of_values(path, read_values(path))


def read_values(path: Path, without: str = "") -> Any:
    """What a JSON file holds, whether it is a record or not; `without` a field that nobody will look at."""
    try:
        text = read_bytes(path)
    except WrongCommand as problem:
        raise WrongCommand(f"{path} is not a record", why=problem.why) from None
    try:
        return _parsed(_cut(text, without)) if without else _parsed(text)
    except ValueError as problem:
        if without:
            return read_values(path)
        raise WrongCommand(f"{path} is not a record", why=str(problem)) from None


def _parsed(text: bytes) -> Any:
    try:
        values = from_json(text)
    except ValueError as problem:
        raise ValueError(TOO_DEEP if "recursion limit" in str(problem) else f"it is no JSON: {problem}") from None
    if is_too_deep(text, values):
        raise ValueError(TOO_DEEP)
    return values


def _cut(text: bytes, name: str) -> bytes:
    """The text without a field that is an object, in the layout that records are written in; any other as it is.

    Only fields of the record itself stand behind one space there. What is no JSON afterwards is read as a whole.
    """
    start = text.find(f'\n "{name}": {{'.encode())
    stop = text.find(b'\n "', start + 1)
    return text if min(start, stop) < 0 else text[:start] + text[stop:]


def of_values(path: Path, values: Any) -> Record:
    """The record that the values of a file are, or why they are none."""
    if not isinstance(values, dict) or "schema" not in values:
        why = "schema is missing" if isinstance(values, dict) else "it is no JSON object"
        raise WrongCommand(f"{path} is not a record", why=why)
    if values["schema"] != SCHEMA:
        raise WrongCommand(
            f"{path} has schema {short(str(values['schema']))}",
            why=f"this paceline reads schema {SCHEMA}",
            remedy=f"read it with {_writer(values)}, or run it again",
        )
    try:
        known = values if values.keys() <= _FIELDS else {key: values[key] for key in values if key in _FIELDS}
        record = Record.model_validate(known)
        check_figures(values)
    except ValidationError as problem:
        raise _misread(path, values, problem) from None
    return record


_FIELDS = {*Record.model_fields, "schema"}


def _misread(path: Path, values: dict[str, Any], problem: ValidationError) -> WrongCommand:
    """What is wrong with a file: a setting of a newer paceline, or else the first thing that is damaged."""
    errors = problem.errors()
    for error in errors:
        if error["type"] == "extra_forbidden" and error["loc"][0] == "run":
            why = f"{'.'.join(map(str, error['loc']))} is a setting that this paceline ({VERSION}) does not know"
            return WrongCommand(f"{path} is of a newer paceline", why=why, remedy=f"read it with {_writer(values)}")
    where, what = ".".join(map(str, errors[0]["loc"])), str(errors[0]["msg"]).removeprefix("Value error, ")
    return WrongCommand(f"{path} is not a record", why=f"{short(where)}: {what}" if where else what)


def _writer(values: dict[str, Any]) -> str:
    """The paceline that wrote a record, as far as it tells."""
    environment = values.get("environment")
    version = environment.get("paceline") if isinstance(environment, dict) else None
    known = isinstance(version, str) and version != VERSION
    return f"paceline {version}, which wrote it" if known else "the paceline that wrote it"


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise _unwritten(path, problem) from None


def _unwritten(path: Path, problem: OSError) -> PacelineError:
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    remedy = "free some room, or write elsewhere" if full else "a folder that can be written"
    kind = NoRoom if full else PacelineError
    return kind(f"{path} cannot be written", why=problem.strerror or str(problem), remedy=remedy)


def write(path: Path, text: str) -> None:
    """All of it or nothing; what is no plain file (/dev/stdout, a link) stays what it is."""
    try:
        if is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as problem:
        raise _unwritten(path, problem) from None


def is_special(path: Path) -> bool:
    """Whether something is there that must not be replaced by a file: a device, a pipe, a link."""
    return os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))


def check_writable(path: Path, flag: str = "--json") -> None:
    """Refuse before the work what could not be written after it."""
    if os.path.isdir(path):
        raise WrongCommand(f"{flag} {path}", why="it is a folder", remedy=f"{flag} {path / 'FILE'}")
    folder = path.parent
    if not os.path.isdir(folder):
        raise WrongCommand(f"{flag} {path}", why=f"there is no folder {folder}", remedy=f"mkdir -p {folder}")
    if not os.access(path if is_special(path) else folder, os.W_OK):
        raise WrongCommand(f"{flag} {path}", why="it cannot be written")

"""The record: one JSON file per run. Reports read nothing but records and their event files."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from paceline._version import VERSION
from paceline.cluster.environment import Environment
from paceline.errors import NoRoom, PacelineError, WrongCommand, short
from paceline.files.read import read_bytes
from paceline.files.redact import redacted, secrets_of
from paceline.files.wanted import wanted
from paceline.measure.record.depth import is_too_deep
from paceline.measure.record.figures import (
    Accuracy,
    BusyPart,
    Bytes,
    Clock,
    Communication,
    Efficiency,
    ElasticPart,
    ExperimentPart,
    InputPart,
    Json,
    Metric,
    NetworkPart,
    Number,
    PlanPart,
    RacePart,
    Rate,
    ReplicasPart,
    Resources,
    Series,
    StalenessPart,
    TaskColumns,
    TimedIncident,
)
from paceline.run.run import Run

LISTED = "paceline list names the records in a folder"
SCHEMA = 1
TOO_DEEP = "it is nested too deeply"
Kind = Literal["measured", "replayed", "forecast"]
Turn = tuple[str | None, int | None, str | None, bool]

# Figures that readers rely on: in every record of a run that did not fail, and in every part that is not empty.
_NEEDED = {
    "rate": ("total",),
    "step": ("median", "p95", "max"),
    "breakdown": ("step",),
    "bytes": ("received_per_step",),
    "resources": ("pss_peak",),
}
ID = r"^[^/\x00-\x1f.][^/\x00-\x1f]{0,199}$"  # files are named after it, so that it must not lead to another folder
_WHOLE = {"replicas": ("identical",), "efficiency": ("value", "low", "high", "baseline", "speedup")}
_UNKNOWN_TO_A_FORECAST = {"resources"}
_UNKNOWN_TO_A_COORDINATOR = {"resources", "bytes"}  # which makes the record of an elastic job


class Record(BaseModel):  # type: ignore[explicit-any]  # BaseModel has it, the fields have not
    """The result of one run. Times are in seconds, sizes in bytes. docs/concepts/record.md explains each field.

    A run that failed has `failure` and none of the figures. A forecast has no memory, series, loss or clock.
    """

    model_config = ConfigDict(extra="ignore")

    schema_: int = Field(default=SCHEMA, alias="schema")
    kind: Kind = "measured"
    id: Annotated[str, Field(pattern=ID)]
    text: str
    time: str
    run: Run
    same_result: bool | None = None
    experiment: ExperimentPart = Field(default_factory=ExperimentPart)
    race: RacePart = Field(default_factory=RacePart)
    busy: BusyPart = Field(default_factory=BusyPart)
    environment: Environment
    notes: list[str] = []
    verdict: Literal["steady", "unsteady", "failed"]
    failure: str | None = None
    workers: int
    device: str = ""
    unit: str = ""
    comm: str = ""
    rate: Rate = Field(default_factory=Rate)
    step: dict[str, Number] = {}
    series: Series = Field(default_factory=Series)
    efficiency: Efficiency = Field(default_factory=Efficiency)
    breakdown: dict[str, Number] = {}
    communication: Communication = Field(default_factory=Communication)
    task: TaskColumns = Field(default_factory=TaskColumns)
    bytes: Bytes = Field(default_factory=Bytes)
    resources: Resources = Field(default_factory=Resources)
    input: InputPart = Field(default_factory=InputPart)
    plan: PlanPart = Field(default_factory=PlanPart)
    profile: dict[str, Json] | None = None
    network: NetworkPart = Field(default_factory=NetworkPart)
    replicas: ReplicasPart = Field(default_factory=ReplicasPart)
    staleness: StalenessPart = Field(default_factory=StalenessPart)
    loss: list[float] = []
    accuracy: list[Accuracy] = []
    metrics: dict[str, Metric] = {}
    incidents: list[TimedIncident] = []
    elastic: ElasticPart = Field(default_factory=ElasticPart)
    logs: list[str] = []
    clock: Clock = Field(default_factory=Clock)
    events: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Record:
        """Refuse a record that lacks a figure its readers rely on."""
        if self.verdict != "failed" and (lacking := next(_lacking(self), None)):
            raise ValueError(lacking)
        return self

    @property
    def turn(self) -> Turn | None:
        """The round of a race, its sitting, and whether processes were shared; runs with equal turns are paired."""
        race = self.race
        return (race.get("name"), race.get("round"), race.get("sitting"), race.get("shared", False)) if race else None

    @property
    def outcome(self) -> str:
        """The verdict in words; "too few steps" is not the same as "unsteady"."""
        return self.verdict if self.series.get("judged", True) else "not judged"

    @property
    def counts_bytes(self) -> bool:
        """Whether its bytes were counted. Older records of DDP, without buckets, and elastic jobs do not know them."""
        reference = self.run.reference
        known = reference is None or not reference.counts_buckets or bool(self.bytes.get("buckets"))
        return known and not self.elastic

    def without_secrets(self) -> Record:
        """Return the record without tokens in addresses, passwords in commands and keys in lines of a log."""
        values = self.model_dump(mode="json", by_alias=True)
        # Our own words stay, even if a secret is equal to one of them: names of fields (except in an experiment), and
        # some values.
        secrets = secrets_of(os.environ)
        clean = {name: redacted(part, secrets, names=name == "experiment") for name, part in values.items()}
        clean |= {name: values[name] for name in ("id", "time", "kind", "verdict")}
        clean["run"] |= {name: values["run"][name] for name in ("memory_format", "precision")}
        return Record.model_validate(clean)

    def to_json(self) -> str:
        return json.dumps(self.without_secrets().model_dump(mode="json", by_alias=True), indent=1) + "\n"


def _lacking(record: Record) -> Iterator[str]:
    """Yield the name of each figure that a run which ended must have and this record lacks."""
    if record.workers < 1:
        yield "workers: at least 1 is needed"
    optional = _UNKNOWN_TO_A_FORECAST if record.kind == "forecast" else set[str]()
    optional = _UNKNOWN_TO_A_COORDINATOR if record.elastic else optional
    for name, keys in (_NEEDED | _WHOLE).items():
        part: Mapping[str, object] = getattr(record, name)
        if part or (name in _NEEDED and name not in optional):
            yield from (f"{name}.{key}: it is missing" for key in keys if key not in part and name not in optional)
    if record.breakdown["step"] <= 0:
        yield "breakdown.step: it is not above 0"
    if record.network.get("requested") and "goodput" not in record.network:
        yield "network: requested stands without goodput"
    coded, spent = record.bytes, record.resources
    sizes = coded.get("before_compression_per_step"), coded.get("after_compression_per_step")
    seconds = spent.get("encode_seconds_per_step"), spent.get("decode_seconds_per_step")
    if any(sizes) and not all((*sizes, *seconds)):
        yield "bytes and seconds of compression stand together"


def read(path: Path) -> Record:
    """Read a record from a file; raises if it is damaged or has another schema version.

    Within a schema version fields are only added, so unknown fields are left out. An unknown setting of the run is
    refused, because it changed what was run.
    """
    return of_values(path, read_values(path))


def read_values(path: Path, without: str = "") -> object:
    """Read a JSON file, whether it is a record or not; `without` is a field that the caller does not need."""
    try:
        text = read_bytes(path)
    except WrongCommand as problem:
        raise WrongCommand(f"{path} is not a record", why=problem.why) from None
    try:
        return _parsed(_cut(text, without)) if without else _parsed(text)
    except ValueError as problem:
        if without:
            return read_values(path)
        raise WrongCommand(f"{path} is not a record", why=str(problem), remedy=LISTED) from None


def _parsed(text: bytes) -> object:
    try:
        values: object = from_json(text)
    except ValueError as problem:
        raise ValueError(TOO_DEEP if "recursion limit" in str(problem) else f"it is no JSON: {problem}") from None
    if is_too_deep(text, values):
        raise ValueError(TOO_DEEP)
    return values


def _cut(text: bytes, name: str) -> bytes:
    """Return the JSON text without a field that holds an object, if the text has the layout of records; else all of it.

    In that layout only fields of the record itself are indented by one space. If the result is no JSON, the caller
    reads the whole text.
    """
    start = text.find(f'\n "{name}": {{'.encode())
    stop = text.find(b'\n "', start + 1)
    return text if min(start, stop) < 0 else text[:start] + text[stop:]


def of_values(path: Path, values: object) -> Record:
    """Make a record from the values of a file. Raises with the first problem."""
    if not isinstance(values, dict) or "schema" not in values:
        why = "schema is missing" if isinstance(values, dict) else "it is no JSON object"
        raise WrongCommand(f"{path} is not a record", why=why, remedy=LISTED)
    if values["schema"] != SCHEMA:
        raise WrongCommand(
            f"{path} has schema {short(str(values['schema']))}",
            why=f"this paceline reads schema {SCHEMA}",
            remedy=f"read it with {_writer(values)}, or run it again",
        )
    try:
        return Record.model_validate(values)
    except ValidationError as problem:
        raise _misread(path, values, problem) from None


def _misread(path: Path, values: dict[str, object], problem: ValidationError) -> WrongCommand:
    """Return an error that names the problem: a setting of a newer paceline, or the first damaged field."""
    errors = problem.errors()
    for error in errors:
        if error["type"] == "extra_forbidden" and error["loc"][0] == "run":
            why = f"{'.'.join(map(str, error['loc']))} is a setting that this paceline ({VERSION}) does not know"
            return WrongCommand(f"{path} is of a newer paceline", why=why, remedy=f"read it with {_writer(values)}")
    where, what = ".".join(map(str, errors[0]["loc"])), str(errors[0]["msg"]).removeprefix("Value error, ")
    why, _ = wanted(what)
    return WrongCommand(f"{path} is not a record", why=f"{short(where)}: {why}" if where else why, remedy=LISTED)


def _writer(values: dict[str, object]) -> str:
    """Return the version of paceline that wrote a record, if the record names it."""
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
    """Write the whole text or nothing. A device, pipe or link such as /dev/stdout is written to and not replaced."""
    try:
        if is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        fresh.touch(exist_ok=False)  # never a file that is there, or a link to another one
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as problem:
        raise _unwritten(path, problem) from None


def check_folder(path: Path, flag: str) -> None:
    """Refuse, before any work, a folder that is a file or could not be made."""
    place = path
    while not os.path.exists(place) and place != place.parent:
        place = place.parent
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        why = f"{place} is not a folder" if not os.path.isdir(place) else f"{place} cannot be written"
        raise WrongCommand(f"{flag} {path}", why=why, remedy=f"{flag} FOLDER")


def is_special(path: Path) -> bool:
    """Return whether the path is a device, a pipe or a link, which must not be replaced by a file."""
    return os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))


def check_writable(path: Path, flag: str = "--json") -> None:
    """Refuse, before any work, a file that could not be written at the end."""
    if os.path.isdir(path):
        raise WrongCommand(f"{flag} {path}", why="it is a folder", remedy=f"{flag} {path / 'FILE'}")
    folder = path.parent
    if not os.path.isdir(folder):
        raise WrongCommand(f"{flag} {path}", why=f"there is no folder {folder}", remedy=f"mkdir -p {folder}")
    if not os.access(path if is_special(path) else folder, os.W_OK):
        raise WrongCommand(f"{flag} {path}", why="it cannot be written")

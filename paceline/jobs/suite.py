"""A race as a file: contenders x models x workers x batch sizes, and what all of them have in common.

contenders = ["allreduce", "half: allreduce,compress=cast(bf16)"]
models = ["mobilenet_v2"]
workers = [1, 2]
batch_sizes = [64]
rounds = 5

[run]
image_size = 32
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, create_model

from paceline.errors import UnknownName
from paceline.run import Run
from paceline.tomlfile import read_toml

_GRID = (
    *("workers", "model", "batch_size", "global_batch", "seed"),
    *("strategy", "rule", "exchange", "topology", "schedule", "compress", "membership"),
)


def _common() -> type[BaseModel]:
    """The fields of a run that a suite may set for all its cells, each as optional as on the command line."""
    fields: dict[str, Any] = {
        name: (field.annotation, field.default) for name, field in Run.model_fields.items() if name not in _GRID
    }
    return create_model("Common", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


Common = _common()


class Suite(BaseModel):
    """What a race is made of. Every field has a flag of `paceline race`, which wins over the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "race"
    title: str = ""
    notes: list[str] = []
    contenders: Annotated[list[str], Field(min_length=1)] = ["allreduce"]
    models: Annotated[list[str], Field(min_length=1)] = ["mobilenet_v2"]
    workers: Annotated[list[PositiveInt], Field(min_length=1)] = [2]
    batch_sizes: Annotated[list[PositiveInt], Field(min_length=1)] = [32]
    rounds: PositiveInt = 5
    minutes: float | None = None
    seed: int = 0
    run: Common = Common()  # type: ignore[valid-type]

    @property
    def common(self) -> dict[str, Any]:
        """What was said about all runs."""
        return dict(self.run.model_dump(exclude_unset=True))  # type: ignore[attr-defined]


def shipped() -> dict[str, Path]:
    """The suites that come with paceline, one per published system."""
    folder = Path(str(resources.files("paceline.suites")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_suite(text: str) -> Suite:
    """A suite by name, or from a file."""
    path = Path(text)
    if not path.suffix and not path.exists():
        if text not in shipped():
            raise UnknownName("suite", text, [*shipped(), "FILE.toml"])
        path = shipped()[text]
    return read_toml(path, Suite)

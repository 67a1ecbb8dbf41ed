"""A race as a file: contenders x models x workers x batch sizes, and their common settings.

contenders = ["allreduce", "half: allreduce,compressor=cast(bf16)"]
models = ["mobilenet_v2"]
workers = [1, 2]
batch_sizes = [64]
minutes = 5

[run]
image_size = 32
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from paceline.errors import Refused, UnknownName, WrongCommand
from paceline.files.read import read_text
from paceline.files.toml import LARGEST, place_of, read_toml
from paceline.menu.grammar import parse
from paceline.race.contenders import parse_contender
from paceline.run.compose.compose import check_words
from paceline.run.fields import LARGEST_SEED
from paceline.run.run import GRID, Run

Rounds = Annotated[int, Field(gt=0, le=10_000)]
Minutes = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
Margin = Annotated[float, Field(gt=0, le=50, allow_inf_nan=False)]
HalfWidth = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0, le=1 << 24)]
MINUTES = 3.0  # minutes of a heat, if neither minutes nor rounds are set


def _common() -> type[BaseModel]:
    """Return a model of the fields of Run that a suite may set for all cells, each optional as on the command line."""
    fields: dict[str, Any] = {
        name: (field.annotation, field.default) for name, field in Run.model_fields.items() if name not in GRID
    }
    return create_model("Common", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


Common = _common()


class Published(BaseModel):
    """A published figure, shown beside the heats of the same model and number of workers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    model: str | None = None
    workers: Count | None = None

    def is_about(self, model: str, workers: int) -> bool:
        same = self.model is None or parse(self.model).word == parse(model).word
        return same and self.workers in (None, workers)


class Suite(BaseModel):
    """The settings of a race. Flags of `paceline race` override the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "race"
    title: str = ""
    notes: list[str] = []
    published: list[Published] = []
    contenders: Annotated[list[str], Field(min_length=1, max_length=1_000)] = ["allreduce"]
    models: Annotated[list[str], Field(min_length=1, max_length=1_000)] = ["mobilenet_v2"]
    workers: Annotated[list[Count], Field(min_length=1, max_length=1_000)] = [2]
    batch_sizes: Annotated[list[Count], Field(min_length=1, max_length=1_000)] = [32]
    rounds: Rounds | None = None  # without it, starts are added until every contender is decided
    reference_rounds: Rounds | None = None  # rounds with the baseline, and with a limit that runs isolated
    minutes: Minutes | None = None  # minutes of each heat
    margin: Margin = 3.0  # percent; a difference that is surely smaller makes contenders level
    half_width: HalfWidth = 5.0  # percent of the interval of the best to ddp; a race in turns goes on until then
    isolated: bool = False  # every contender in processes of its own
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 0
    run: Common = Common()  # type: ignore[valid-type]

    @property
    def until_sure(self) -> bool:
        """Return whether the race itself decides how many starts it needs."""
        return self.rounds is None

    @property
    def minutes_of_a_heat(self) -> float | None:
        return MINUTES if self.minutes is None and self.until_sure else self.minutes

    @property
    def common(self) -> dict[str, Any]:
        """Return the settings that apply to all runs."""
        return dict(self.run.model_dump(exclude_unset=True))  # type: ignore[attr-defined]


def shipped() -> dict[str, Path]:
    """Return the suites that come with paceline, one per published system."""
    folder = Path(str(resources.files("paceline.race.suites")))
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def read_suite(text: str) -> Suite:
    """Read a suite by name or from a file."""
    path = Path(text)
    if not path.suffix and not os.path.exists(path):
        if text not in shipped():
            raise UnknownName("suite", text, [*shipped(), "FILE.toml"])
        path = shipped()[text]
    suite = read_toml(path, Suite)
    _check_words(path, suite)
    return suite


def _check_words(path: Path, suite: Suite) -> None:
    """Raise for words that no menu has, with their line. The plan checks later whether the words can be combined."""
    wrong = list(_wrong(suite))
    if wrong:
        text = read_text(path, LARGEST)
        raise Refused(f"{place_of(path, text, keys, value)}: {problem}" for keys, value, problem in wrong)


def _wrong(suite: Suite) -> Iterator[tuple[list[str], str, WrongCommand]]:
    checks: list[tuple[list[str], str, Callable[[], Run]]] = [
        *((["run", name], "", partial(Run, **{name: value})) for name, value in suite.common.items()),
        *((["models"], model, partial(Run, model=model)) for model in suite.models),
        *((["contenders"], text, partial(_contending, text)) for text in suite.contenders),
    ]
    for keys, value, make in checks:
        try:
            check_words(make())
        except WrongCommand as problem:
            yield keys, value, problem


def _contending(text: str) -> Run:
    return parse_contender(text).run(Run())

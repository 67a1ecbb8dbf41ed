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

from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, create_model

from paceline.compose import check_words
from paceline.contenders import parse_contender
from paceline.errors import Refused, UnknownName, WrongCommand
from paceline.grammar import parse
from paceline.run import CHOSEN, Run
from paceline.tomlfile import place_of, read_toml

_GRID = ("workers", "model", "batch_size", "global_batch", "seed", *CHOSEN)


def _common() -> type[BaseModel]:
    """The fields of a run that a suite may set for all its cells, each as optional as on the command line."""
    fields: dict[str, Any] = {
        name: (field.annotation, field.default) for name, field in Run.model_fields.items() if name not in _GRID
    }
    return create_model("Common", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


Common = _common()


class Published(BaseModel):
    """A published figure, shown beside the heats that it is about: of one model, with one number of workers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str
    model: str | None = None
    workers: PositiveInt | None = None

    def is_about(self, model: str, workers: int) -> bool:
        same = self.model is None or parse(self.model).word == parse(model).word
        return same and self.workers in (None, workers)


class Suite(BaseModel):
    """What a race is made of. A flag of `paceline race` wins over the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "race"
    title: str = ""
    notes: list[str] = []
    published: list[Published] = []
    contenders: Annotated[list[str], Field(min_length=1)] = ["allreduce"]
    models: Annotated[list[str], Field(min_length=1)] = ["mobilenet_v2"]
    workers: Annotated[list[PositiveInt], Field(min_length=1)] = [2]
    batch_sizes: Annotated[list[PositiveInt], Field(min_length=1)] = [32]
    rounds: PositiveInt = 5
    reference_rounds: PositiveInt | None = None  # in which the baseline and the limit take part; in all if not said
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
    suite = read_toml(path, Suite)
    _check_words(path, suite)
    return suite


def _check_words(path: Path, suite: Suite) -> None:
    """Refuse words that no menu has, each with its line; whether they go together is asked when a race is planned."""
    wrong = list(_wrong(suite))
    if wrong:
        text = path.read_text()
        raise Refused(f"{place_of(path, text, keys, value)}: {problem}" for keys, value, problem in wrong)


def _wrong(suite: Suite) -> Iterator[tuple[list[str], str, WrongCommand]]:
    asked: list[tuple[list[str], str, Callable[[], Run]]] = [
        *((["run", name], "", partial(Run, **{name: value})) for name, value in suite.common.items()),
        *((["models"], model, partial(Run, model=model)) for model in suite.models),
        *((["contenders"], text, partial(_contending, text)) for text in suite.contenders),
    ]
    for keys, value, make in asked:
        try:
            check_words(make())
        except WrongCommand as problem:
            yield keys, value, problem


def _contending(text: str) -> Run:
    return parse_contender(text).run(Run())

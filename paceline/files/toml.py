"""Read a TOML file as validated values; errors name the line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paceline.errors import WrongCommand, short
from paceline.files.read import read_text
from paceline.files.wanted import wanted

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 1 << 20  # bytes

Values = TypeVar("Values", bound=BaseModel)


def read_toml(path: Path, model: type[Values]) -> Values:
    """Read and validate a file. Errors name the file and the line; for an unknown key they list the known keys."""
    text = read_text(path, LARGEST)
    try:
        values = tomllib.loads(text)
    except ValueError as problem:  # also raised for a number with thousands of digits
        raise WrongCommand(f"{path} is not TOML", why=str(problem)) from None
    except RecursionError:
        raise WrongCommand(f"{path} is not TOML", why="it is nested too deep") from None
    try:
        return model.model_validate(values)
    except ValidationError as problem:
        raise _complaint(path, text, model, problem) from None


def _complaint(path: Path, text: str, model: type[BaseModel], problem: ValidationError) -> WrongCommand:
    first = problem.errors()[0]
    where: tuple[Any, ...] = first["loc"]
    name = next((str(part) for part in reversed(where) if isinstance(part, str)), "")
    place = place_of(path, text, where)
    if first["type"] == "extra_forbidden":
        known = _fields(model, where[:-1])
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        return WrongCommand(
            f"{place}: {short(name)!r} is not known here", remedy=f"{hint}known: {', '.join(sorted(known))}"
        )
    shown = "" if first["type"] == "missing" else f" = {short(repr(first['input']))}"
    why, example = wanted(str(first["msg"]).removeprefix("Value error, "))
    written = f"[{example}]" if where and isinstance(where[-1], int) else example
    return WrongCommand(f"{place}: {short(name)}{shown}", why=why, remedy=f"{name} = {written}" if example else "")


def _fields(model: type[BaseModel], where: Sequence[Any]) -> list[str]:
    """Return the field names that the model accepts at a place."""
    inner: Any = model
    for part in where:
        if isinstance(part, int):
            continue  # an index of a list, whose items all have the same model
        field = getattr(inner, "model_fields", {}).get(part)
        kinds = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    return list(getattr(inner, "model_fields", {}))


def place_of(path: Path, text: str, keys: Sequence[str | int], value: str = "") -> str:
    """Return "file, line n" for a key. With `value`, a list over several lines gives the line of that value."""
    line = line_of(text, keys)
    if line is None:
        return str(path)
    below = enumerate(text.splitlines()[line - 1 :], start=line)
    own = next((number for number, row in below if f'"{value}"' in row or f"'{value}'" in row), line)
    return f"{path}, line {own if value else line}"


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    """Return the number of the line that sets a key. A number among `keys` selects one of several [[tables]].

    If the key is missing or is itself a table, return the line of the table's head. Without a head, return the first
    line that sets a key of this name.
    """
    *tables, last = [key for key in keys if isinstance(key, str)] or [""]
    before = next((key for key in keys[: keys.index(last)] if isinstance(key, int)), 0) if tables else 0
    inside = not tables
    top = fallback = None
    for number, line in enumerate(text.splitlines(), start=1):
        head = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        if head:
            named = head.group(1).split(".")
            inside = named == tables and before == 0
            before -= named == tables
            top = number if inside or (top is None and named == [*tables, last]) else top
            continue
        if re.match(rf"\s*[\"']?{re.escape(last)}[\"']?\s*=", line) and inside:
            return number
        if re.search(rf"\b{re.escape(last)}\b[\"']?\s*=", line) and fallback is None:
            fallback = number
    return top or fallback

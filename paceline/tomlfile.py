"""A TOML file as checked values; what is wrong with it is told with its line."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from paceline.errors import WrongCommand

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Values = TypeVar("Values", bound=BaseModel)


def read_toml(path: Path, model: type[Values]) -> Values:
    """The values of a file; a wrong one names file and line, what is taken, and the nearest word."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror or str(problem) if isinstance(problem, OSError) else "it is no text"
        raise WrongCommand(f"{path} cannot be read", why=why) from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
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
        return WrongCommand(f"{place}: {name!r} is not known here", remedy=f"{hint}known: {', '.join(sorted(known))}")
    shown = "" if first["type"] == "missing" else f" = {first['input']!r}"
    return WrongCommand(f"{place}: {name}{shown}", why=str(first["msg"]).removeprefix("Value error, "))


def _fields(model: type[BaseModel], where: Sequence[Any]) -> list[str]:
    """The names that are taken at a place inside the model."""
    found: Any = model
    for part in where:
        if isinstance(part, int):
            continue  # an item of a list: what is known of the list is known of each
        field = getattr(found, "model_fields", {}).get(part)
        kinds = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        found = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
    return list(getattr(found, "model_fields", {}))


def place_of(path: Path, text: str, keys: Sequence[str | int], value: str = "") -> str:
    """The file and the line that sets a key; in a list over several lines, the one with the value."""
    line = line_of(text, keys)
    if line is None:
        return str(path)
    below = enumerate(text.splitlines()[line - 1 :], start=line)
    own = next((number for number, row in below if f'"{value}"' in row or f"'{value}'" in row), line)
    return f"{path}, line {own if value else line}"


def line_of(text: str, keys: Sequence[str | int]) -> int | None:
    """The line that sets a key, after the head of the table that it stands in; a number says which of several.

    The head itself where the key is not there or is a table, or the first line with such a key where there is no head.
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

"""Contenders of a race as text: a strategy, axes, or both. All other settings are those of the base of the race.

    contender = [ label ":" ] part { "," part }
    part      = strategy | flag "=" value

    allreduce                                     a strategy by name
    allreduce,schedule=wfbp                       with one axis replaced
    rule=atc,exchange=neighbor(ring)              axes alone
    half: allreduce,compressor=cast(bf16)         with a label of its own
    --rule atc --exchange "neighbor(ring)"        the same as flags of paceline run

Flags are those of `paceline run` that describe a configuration, with _ or - between words. Commas inside
parentheses belong to the member.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from paceline.errors import UnknownName, WrongCommand, short
from paceline.menu.grammar import LONGEST
from paceline.run.compose.compose import axes_of
from paceline.run.fields import Kind
from paceline.run.older import OLDER
from paceline.run.reference import REFERENCES
from paceline.run.run import CHOSEN, Run, changing, fields, flag_of

# Settings of the whole race, the same for all contenders.
_OF_THE_RACE = (*fields(Kind.SIZE, Kind.LENGTH), "model")
FLAGS = tuple(name for name in Run.model_fields if name not in _OF_THE_RACE)


@dataclass(frozen=True)
class Contender:
    """A label and the settings that it changes in the base of the race."""

    label: str
    choices: tuple[tuple[str, str], ...]

    def run(self, base: Run) -> Run:
        """Return the base with this contender's settings; errors of pydantic become errors of paceline."""
        cleared = dict.fromkeys(CHOSEN) if any(name in CHOSEN for name, _ in self.choices) else {}
        try:
            return base.with_(**{**cleared, **dict(self.choices)})
        except ValidationError as problem:
            first = problem.errors()[0]
            raise WrongCommand(
                f"contender {short(self.label)}: {first['loc'][0]}={short(str(first['input']))}", why=str(first["msg"])
            ) from None

    @property
    def is_reference(self) -> bool:
        return dict(self.choices).get("strategy") in REFERENCES


def parse_contender(text: str) -> Contender:
    """Read one contender from its text."""
    if len(text) > LONGEST:
        raise WrongCommand(f"contender {short(text)!r}", why=f"it has more than {LONGEST:,} characters")
    label, body = _labelled(text.strip())
    parts = _from_flags(body) if body.startswith("-") else split(body)
    if not parts:
        raise WrongCommand(f"contender {short(text)!r} is empty", remedy="a strategy (paceline strategies) or axes")
    choices: dict[str, str] = {}
    for part in parts:
        name, value = _choice(part)
        if name in choices:
            raise WrongCommand(f"contender {short(text)!r}", why=f"{name} is given twice")
        choices[name] = value
    return Contender(label or _label(choices), tuple(choices.items()))


def _label(choices: dict[str, str]) -> str:
    words = [value if name == "strategy" else f"{name}={value}" for name, value in choices.items()]
    return ",".join(words)


def _labelled(text: str) -> tuple[str, str]:
    """Split off the label, which ends with a colon and a space, so that package.module:function has none."""
    label, colon, body = text.partition(": ")
    return (label.strip(), body.strip()) if colon and "=" not in label and "(" not in label else ("", text)


def _choice(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    if not equals or "(" in name:
        return "strategy", part
    name = name.strip().lstrip("-").replace("-", "_")
    name = OLDER.get(name, name)
    if name in _OF_THE_RACE:
        raise WrongCommand(
            f"{name}={value.strip()} of a contender",
            why="it belongs to the race as a whole",
            remedy=f"{flag_of(name)} {value.strip()} beside --contender",
        )
    if name not in FLAGS:
        raise UnknownName("flag of a contender", name, FLAGS)
    return name, value.strip()


def _from_flags(text: str) -> list[str]:
    """Read a contender in the form `--rule atc --exchange=ring`."""
    try:
        words = shlex.split(text)
    except ValueError as problem:
        raise WrongCommand(f"contender {short(text)!r} cannot be read", why=str(problem)) from None
    parts: list[str] = []
    for word in words:
        if word.startswith("--"):
            parts.append(word)
        elif parts and "=" not in parts[-1]:
            parts[-1] += f"={word}"
        else:
            raise WrongCommand(f"contender {short(text)!r} cannot be read", why=f"{short(word)!r} belongs to no flag")
    return parts


def split(text: str) -> list[str]:
    """Split a text at commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def contenders_of(texts: Iterable[str]) -> list[Contender]:
    """Return the contenders in the order of the texts, without duplicates and with unique labels."""
    by_label: dict[str, Contender] = {}
    for text in texts:
        contender = parse_contender(text)
        known = by_label.setdefault(contender.label, contender)
        if known.choices != contender.choices:
            raise WrongCommand(
                f"contender {short(text)!r}",
                why=f"the label {short(contender.label)} is taken",
                remedy="another label: NAME: ...",
            )
    return list(by_label.values())


def same_result(run: Run, base: Run) -> bool:
    """Return whether a run gives the result of all-reduce, up to rounding.

    Other runs are also judged by their accuracy.
    """
    changed: list[Any] = [
        name for name in FLAGS if name in changing("result") and getattr(run, name) != getattr(base, name)
    ]
    if changed or run.reference:
        return not changed
    return axes_of(run).same_result

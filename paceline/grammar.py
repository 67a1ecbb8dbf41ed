"""How a member is written: one grammar for positional, keyword and nested settings.

    member  = word [ "(" [ setting { "," setting } ] ")" ]
    setting = [ word "=" ] member

`feedback(topk(ratio=0.01))`, `hierarchical(4x8)`, `fake(cpu, samples=1000)`. What prints can be read back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate

from paceline.errors import BadMember

DEEPEST = 50  # members inside each other
_TOKEN = re.compile(r"\s*([(),=]|[^(),=\s]+)")


@dataclass(frozen=True, slots=True)
class Spec:
    """A member as written: its word and its settings, each again a Spec."""

    word: str
    args: tuple[Spec, ...] = ()
    kwargs: tuple[tuple[str, Spec], ...] = ()
    called: bool = False

    def __str__(self) -> str:
        if not self.called:
            return self.word
        settings = [str(value) for value in self.args]
        settings += [f"{key}={value}" for key, value in self.kwargs]
        return f"{self.word}({', '.join(settings)})"


def parse(text: str) -> Spec:
    """Read one member; a text that does not follow the grammar says where it stops."""
    tokens = _tokens(text)
    if max(accumulate(((token == "(") - (token == ")") for token in tokens), initial=0)) > DEEPEST:
        raise BadMember(f"{text[:40]!r}... cannot be read", why=f"it is nested deeper than {DEEPEST} members")
    spec, rest = _member(tokens, text)
    if rest:
        raise BadMember(f"{text!r} cannot be read", why=f"unexpected {rest[0]!r} after {spec}")
    return spec


def _tokens(text: str) -> list[str]:
    return [match.group(1) for match in _TOKEN.finditer(text.strip())]


def _member(tokens: list[str], text: str) -> tuple[Spec, list[str]]:
    if not tokens or tokens[0] in "(),=":
        found = repr(tokens[0]) if tokens else "the end"
        raise BadMember(f"{text!r} cannot be read", why=f"expected a word, found {found}")
    word, rest = tokens[0], tokens[1:]
    if not rest or rest[0] != "(":
        return Spec(word), rest
    return _settings(word, rest[1:], text)


def _settings(word: str, rest: list[str], text: str) -> tuple[Spec, list[str]]:
    args: list[Spec] = []
    kwargs: list[tuple[str, Spec]] = []
    while rest and rest[0] != ")":
        if len(rest) > 1 and rest[1] == "=":
            key = rest[0]
            value, rest = _member(rest[2:], text)
            kwargs.append((key, value))
        elif kwargs:
            raise BadMember(f"{text!r} cannot be read", why=f"{rest[0]} stands after a named setting of {word}")
        else:
            value, rest = _member(rest, text)
            args.append(value)
        if rest and rest[0] == ",":
            rest = rest[1:]
        elif not rest or rest[0] != ")":
            break
    if not rest or rest[0] != ")":
        raise BadMember(f"{text!r} cannot be read", why=f"the parenthesis of {word} is not closed")
    return Spec(word, tuple(args), tuple(kwargs), called=True), rest[1:]

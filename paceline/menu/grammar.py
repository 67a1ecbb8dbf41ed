"""The syntax of a member: one grammar for positional, keyword and nested settings.

    member  = word [ "(" [ setting { "," setting } ] ")" ]
    setting = [ word "=" ] member

`feedback(topk(ratio=0.01))`, `hierarchical(4x8)`, `fake(cpu, samples=1000)`. str() gives text that parses again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import NoReturn

from paceline.errors import BadMember, short

DEEPEST = 50  # nested members
LONGEST = 10_000  # characters
_TOKEN = re.compile(r"\s*([(),=]|[^(),=\s]+)")


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed member: its word and its settings, each of which is a Spec, too."""

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
    """Parse one member. A syntax error names its position."""
    if len(text) > LONGEST:
        _refuse(text, f"it has {len(text):,} characters, and at most {LONGEST:,} are read")
    tokens = _tokens(text)
    if max(accumulate(((token == "(") - (token == ")") for token in tokens), initial=0)) > DEEPEST:
        _refuse(text, f"it is nested deeper than {DEEPEST} members")
    reader = _Reader(text, tokens)
    spec = reader.member()
    if reader.next:
        _refuse(text, f"unexpected {short(reader.next)!r} after {short(str(spec))}")
    return spec


def _tokens(text: str) -> list[str]:
    return [match.group(1) for match in _TOKEN.finditer(text.strip())]


def _refuse(text: str, why: str) -> NoReturn:
    raise BadMember(f"{short(text)!r} cannot be read", why=why)


class _Reader:
    """A parser over the tokens of a text; `next` is the current token, or empty at the end."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text, self._tokens, self._at = text, [*tokens, "", ""], 0

    @property
    def next(self) -> str:
        return self._tokens[self._at]

    def take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def member(self) -> Spec:
        if self.next in ("", *"(),="):
            _refuse(self._text, f"expected a word, found {repr(self.next) if self.next else 'the end'}")
        word = self.take()
        return self._called(word) if self.next == "(" else Spec(word)

    def _called(self, word: str) -> Spec:
        self.take()
        args: list[Spec] = []
        kwargs: list[tuple[str, Spec]] = []
        while self.next not in ("", ")"):
            self._setting(word, args, kwargs)
            if self.next != ",":
                break
            self.take()
        if self.next != ")":
            _refuse(self._text, f"the parenthesis of {short(word)} is not closed")
        self.take()
        return Spec(word, tuple(args), tuple(kwargs), called=True)

    def _setting(self, word: str, args: list[Spec], kwargs: list[tuple[str, Spec]]) -> None:
        if self._tokens[self._at + 1] == "=" and self.next not in "(),=":
            key = self.take()
            self.take()
            kwargs.append((key, self.member()))
        elif kwargs:
            _refuse(self._text, f"{short(self.next)} stands after a named setting of {short(word)}")
        else:
            args.append(self.member())

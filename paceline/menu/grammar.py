"""The syntax of a member: one grammar for positional, keyword and nested settings.

    member  = word [ "(" [ setting { "," setting } ] ")" ]
    setting = [ word "=" ] member
    word    = characters other than "(),=" and spaces, or any characters in quotes: 'a b', "it's"

Examples: `feedback(topk(ratio=0.01))`, `hierarchical(4x8)`, `tfrecord('s3://bucket/date=2024/x y')`. In quotes, a
backslash escapes the next character. str() of a Spec gives text that parses to the same Spec.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, NoReturn

from paceline.errors import BadMember, short

DEEPEST = 50  # nested members
LONGEST = 10_000  # characters
_TOKEN = re.compile(r"""\s*(?:([(),=])|(["'])((?:\\.|(?!\2)[^\\])*)\2(?=[(),=\s]|$)|([^(),=\s]+))""", re.S)
_SPECIAL = re.compile(r"[(),=\s]|^[\"']|^$")


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed member: its word and its settings. Every setting is a Spec itself."""

    word: str
    args: tuple[Spec, ...] = ()
    kwargs: tuple[tuple[str, Spec], ...] = ()
    called: bool = False

    def __str__(self) -> str:
        if not self.called:
            return quoted(self.word)
        settings = [str(value) for value in self.args]
        settings += [f"{key}={value}" for key, value in self.kwargs]
        return f"{quoted(self.word)}({', '.join(settings)})"

    @property
    def text(self) -> str:
        """Return this Spec as plain text. A single word loses its quotes."""
        return str(self) if self.called else self.word


class Token(NamedTuple):
    """One of the signs ( ) , = or a word. The field that does not apply is empty."""

    sign: str
    word: str


END = Token("", "")


def quoted(word: str) -> str:
    """Return a word as it must be written: in quotes if it would not parse as one word without them."""
    if not _SPECIAL.search(word):
        return word
    sign = '"' if "'" in word and '"' not in word else "'"
    return sign + word.replace("\\", "\\\\").replace(sign, f"\\{sign}") + sign


def parse(text: str) -> Spec:
    """Parse one member. Raises BadMember with the reason if the text is no member."""
    if len(text) > LONGEST:
        _refuse(text, f"it has {len(text):,} characters, and at most {LONGEST:,} are read")
    tokens = _tokens(text)
    if max(accumulate(((token.sign == "(") - (token.sign == ")") for token in tokens), initial=0)) > DEEPEST:
        _refuse(text, f"it is nested deeper than {DEEPEST} members")
    reader = _Reader(text, tokens)
    spec = reader.member()
    if reader.next is not END:
        _refuse(text, f"unexpected {short(reader.next.sign or reader.next.word)!r} after {short(str(spec))}")
    return spec


def _tokens(text: str) -> list[Token]:
    tokens = []
    for match in _TOKEN.finditer(text.strip()):
        sign, quote, inside, word = match.groups()
        if word is not None and word[0] in "\"'":
            _refuse(text, f"the quote of {short(word)} is not closed, or something follows it")
        tokens.append(Token(sign or "", re.sub(r"\\(.)", r"\1", inside, flags=re.S) if quote else word or ""))
    return tokens


def _refuse(text: str, why: str) -> NoReturn:
    raise BadMember(f"{short(text)!r} cannot be read", why=why)


class _Reader:
    """A parser over the tokens of a text; `next` is the current token, or END."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text, self._tokens, self._at = text, [*tokens, END, END], 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1].word

    def member(self) -> Spec:
        if self.next is END or self.next.sign:
            got = "the end" if self.next is END else repr(self.next.sign)
            _refuse(self._text, f"expected a word, found {got}")
        word = self.take()
        return self._called(word) if self.next.sign == "(" else Spec(word)

    def _called(self, word: str) -> Spec:
        self.take()
        args: list[Spec] = []
        kwargs: list[tuple[str, Spec]] = []
        while self.next is not END and self.next.sign != ")":
            self._setting(word, args, kwargs)
            if self.next.sign != ",":
                break
            self.take()
        if self.next.sign != ")":
            _refuse(self._text, f"the parenthesis of {short(word)} is not closed")
        self.take()
        return Spec(word, tuple(args), tuple(kwargs), called=True)

    def _setting(self, word: str, args: list[Spec], kwargs: list[tuple[str, Spec]]) -> None:
        if self._tokens[self._at + 1].sign == "=" and not self.next.sign:
            key = self.take()
            self.take()
            kwargs.append((key, self.member()))
        elif kwargs:
            late = short(self.next.sign or self.next.word)
            _refuse(self._text, f"{late} stands after a named setting of {short(word)}")
        else:
            args.append(self.member())

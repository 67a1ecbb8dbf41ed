"""Find the cause of a failure in a worker's output: the exception of its last traceback, not its last line."""

from __future__ import annotations

import re
from collections.abc import Sequence

KEPT = 1 << 16  # bytes at the end of a stream that are searched for the cause
LONGEST = 1000  # characters of a cause that are shown

_HEAD = "Traceback (most recent call last):"
_IGNORED = ("Exception ignored in", "Exception ignored while")
_MARGIN = re.compile(r"^[ |+]*\| ")  # the margin of exceptions in an ExceptionGroup
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.<>]*(?::.*)?")
_TERMINATED = re.compile(r"terminate called after throwing an instance of '([^']+)'")
_WHAT = re.compile(r"\s*what\(\):\s*(.*)")


class Tail:
    """The end of a stream of lines."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, block: bytes) -> None:
        self._bytes += block[-KEPT:]
        if len(self._bytes) > 2 * KEPT:
            del self._bytes[:-KEPT]

    @property
    def text(self) -> str:
        return self._bytes[-KEPT:].decode("utf-8", "replace")


def cause_in(stderr: str, stdout: str = "") -> str:
    """Return the exception that ended a worker, or else the last line that it wrote to stderr."""
    lines = _lines(stderr)
    cause = _raised(lines) or _terminated(lines) or _raised(_lines(stdout))
    return shortened(cause or next((line.strip() for line in reversed(lines) if _may_be_cause(line)), ""))


def _may_be_cause(line: str) -> bool:
    """Return whether a line may say why a worker ended. Empty lines and paceline's own remarks do not."""
    return bool(line.strip()) and not line.startswith("paceline: ")


def shortened(text: str) -> str:
    """Return the first paragraph of a text, because the rest is debugging advice."""
    first = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    return first if len(first) <= LONGEST else f"{first[:LONGEST]} ..."


def _lines(text: str) -> list[str]:
    """Split text into lines as a terminal shows them: text after a carriage return replaces the text before it."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n")
    return [part for line in plain.split("\n") for part in (line.split("\r") if _HEAD in line else [_visible(line)])]


def _visible(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _raised(lines: Sequence[str]) -> str:
    """Return the exception of the last traceback, except tracebacks of exceptions that Python ignored."""
    for start in reversed([at for at, line in enumerate(lines) if line.endswith(_HEAD)]):
        if start and lines[start - 1].startswith(_IGNORED):
            continue
        if text := _exception(lines[start + 1 :]):
            return text
    return ""


def _exception(lines: Sequence[str]) -> str:
    """Return the first line after the frames, joined with the next one if it ends with a colon."""
    for at, line in enumerate(lines):
        inner = _MARGIN.sub("", line)
        if inner.startswith(" ") or not _EXCEPTION.fullmatch(inner):
            continue
        following = next((part.strip() for part in lines[at + 1 :] if part.strip()), "")
        return f"{inner} {following}" if inner.endswith(":") and following else inner
    return ""


def _terminated(lines: Sequence[str]) -> str:
    """Return the C++ runtime's message about an uncaught exception."""
    for at in reversed(range(len(lines))):
        if match := _TERMINATED.search(lines[at]):
            what = next((detail[1] for line in lines[at + 1 : at + 4] if (detail := _WHAT.match(line))), "")
            return f"{match[1]}: {what}" if what else match[1]
    return ""

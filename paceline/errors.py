"""Every error that paceline raises on purpose.

    PacelineError
    ├── WrongCommand       the request cannot be carried out as written       exit code 2
    │   ├── UnknownName        a word that is in no menu; holds the nearest known word
    │   ├── BadMember          a member with a wrong, missing or extra setting
    │   ├── Refused            a combination that is unsound; lists every reason
    │   └── MissingPackage     an optional package is needed; names the pip command
    ├── WorkloadError      a model, loss or batch that cannot be trained
    │   └── NonFinite          a loss or gradient that is NaN or infinite, with rank and step
    ├── DamagedFile        a file whose bytes are not what its header promises, with the offset
    ├── StoreFailed        an object store refuses, fails or returns something else; names the key
    ├── NoRoom             shared memory or disk is too small for the request
    ├── PeerLost           another rank died, left or stopped answering
    ├── CallMismatch       ranks disagree about the sequence of collectives
    └── WorkerFailed       the launcher saw a worker end badly
        └── TurnFailed         the same, where contenders share processes; names the one whose turn it was
    Stopped (SystemExit)   Ctrl-C, SIGTERM or SIGHUP; all workers ended   exit code 130, 143 or 129

A message has three parts: what (in the user's own words), why, and what to try.
"""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Iterable
from typing import ClassVar

SHORT = 80  # characters of the user's input that a message repeats
_LONG_WORD = re.compile(r"\S{300,}")  # longer than most paths
_MOST_LINES = 100  # problems listed in one message


def short(text: str, most: int = SHORT) -> str:
    """Return a text for use in a message; of a long text, only the beginning and the end."""
    return text if len(text) <= most else f"{text[: most - 23]}...{text[-20:]}"


def _readable(text: str, most: int) -> str:
    return short(_LONG_WORD.sub(lambda word: short(word[0]), text), most)


class PacelineError(Exception):
    """An error whose message joins what, why and what to try. Very long parts are shortened."""

    exit_code = 1
    longest: ClassVar[int] = 10_000  # most characters of each part, which may hold the last lines of a worker

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        what, why, remedy = (_readable(part, self.longest) for part in (what, why, remedy))
        self.what, self.why, self.remedy = what, why, remedy
        text = what if not why else f"{what}: {why}"
        super().__init__(text if not remedy else f"{text}. try: {remedy}")


class WrongCommand(PacelineError):
    exit_code = 2
    longest: ClassVar[int] = 1_000


class UnknownName(WrongCommand):
    """A word is not on the menu of its family."""

    def __init__(self, kind: str, name: str, menu: Iterable[str]) -> None:
        known = sorted(menu)
        name = short(name)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        super().__init__(f"{kind} {name!r} does not exist", remedy=f"{hint}known: {', '.join(known)}")
        self.nearest = near[0] if near else None


class BadMember(WrongCommand):
    """A member was written with settings that it does not accept."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(short(what, 2 * SHORT), why=why, remedy=remedy)


class Refused(WrongCommand):
    """The chosen members cannot be combined. paceline/run/compose/ decides this and lists every reason."""

    longest: ClassVar[int] = 2_000 * (_MOST_LINES + 1)

    def __init__(self, problems: Iterable[str]) -> None:
        lines = [_readable(problem, 2_000) for problem in problems]
        more = len(lines) - _MOST_LINES
        self.problems = (*lines[:_MOST_LINES], *([f"and {more:,} more problems"] if more > 0 else []))
        super().__init__("\n".join(self.problems))


class MissingPackage(WrongCommand):
    """A feature needs an optional package that is not installed."""

    def __init__(self, what: str, *, package: str, extra: str | None = None) -> None:
        line = f"pip install 'paceline[{extra}]'" if extra else f"pip install {package}"
        super().__init__(f"{what} needs {package}", remedy=line)


class WorkloadError(PacelineError):
    """The model, its loss or its batch cannot be trained."""


class NonFinite(WorkloadError):
    """A value is NaN or infinite where a finite number is needed."""


class DamagedFile(PacelineError):
    """The content of a file does not match its header."""

    def __init__(self, path: object, offset: int, *, why: str, remedy: str = "get the file again") -> None:
        self.path, self.offset = path, offset
        super().__init__(f"{path} is damaged at offset {offset}", why=why, remedy=remedy)


class StoreFailed(PacelineError):
    """An object store that refuses a request or keeps failing; names the key."""


class NoRoom(PacelineError):
    """There is not enough shared memory or disk space."""


class PeerLost(PacelineError):
    """Another rank died, left or stopped answering."""

    def __init__(self, what: str, *, rank: int | None = None, why: str = "", remedy: str = "") -> None:
        self.rank = rank
        super().__init__(what, why=why, remedy=remedy)


class CallMismatch(PacelineError):
    """Two ranks made different collective calls where both should make the same one."""

    def __init__(self, what: str, *, rank: int, why: str = "", remedy: str = "") -> None:
        self.rank = rank
        super().__init__(what, why=why, remedy=remedy)


class WorkerFailed(PacelineError):
    """A worker process failed. The message names rank, pid and signal or exit code."""


class TurnFailed(WorkerFailed):
    """A worker failed in a start that contenders share.

    `contender` had its turn, `kind` is the class of the error, and `log` says where to read more.
    """

    def __init__(self, what: str, contender: str, kind: str, log: str = "") -> None:
        self.contender, self.kind, self.log = contender, kind, log
        super().__init__(what)


class Stopped(SystemExit):
    """A signal stopped the launcher, and all workers have ended. If uncaught, the process exits with 128 + signal."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(self.exit_code)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"

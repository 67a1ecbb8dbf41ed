"""Every error that paceline raises on purpose.

    PacelineError
    ├── WrongCommand       the request cannot be carried out as written       exit code 2
    │   ├── UnknownName        a word that is in no menu; carries the nearest one
    │   ├── BadMember          a member with a wrong, missing or extra setting
    │   ├── Refused            a combination that is unsound; lists every reason
    │   └── MissingPackage     an optional package is needed; carries the pip line
    ├── WorkloadError      a model, loss or batch that cannot be trained
    │   └── NonFinite          a loss or gradient that is NaN or infinite, with rank and step
    ├── DamagedFile        a file whose bytes are not what its header promises, with the offset
    ├── NoRoom             shared memory or disk is too small for what was asked
    ├── PeerLost           another rank died, left or stopped answering
    ├── CallMismatch       ranks disagree about the sequence of collectives
    └── WorkerFailed       the launcher saw a worker end badly
        └── TurnFailed         a start that contenders share; carries the one whose turn it was
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
    """A text as a message repeats it: its beginning and its end where it is long."""
    return text if len(text) <= most else f"{text[: most - 23]}...{text[-20:]}"


def _readable(text: str, most: int) -> str:
    return short(_LONG_WORD.sub(lambda word: short(word[0]), text), most)


class PacelineError(Exception):
    """what, why and try, joined into one message; input that was not shortened by then is shortened here."""

    exit_code = 1
    longest: ClassVar[int] = 10_000  # characters of each part: the last lines of a worker may be among them

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        what, why, remedy = (_readable(part, self.longest) for part in (what, why, remedy))
        self.what, self.why, self.remedy = what, why, remedy
        text = what if not why else f"{what}: {why}"
        super().__init__(text if not remedy else f"{text}. try: {remedy}")


class WrongCommand(PacelineError):
    exit_code = 2
    longest: ClassVar[int] = 1_000


class UnknownName(WrongCommand):
    """A word that no menu knows."""

    def __init__(self, kind: str, name: str, menu: Iterable[str]) -> None:
        known = sorted(menu)
        name = short(name)
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        super().__init__(f"{kind} {name!r} does not exist", remedy=f"{hint}known: {', '.join(known)}")
        self.nearest = near[0] if near else None


class BadMember(WrongCommand):
    """A member written with settings that it does not take."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(short(what, 2 * SHORT), why=why, remedy=remedy)


class Refused(WrongCommand):
    """A combination that run/compose/run/compose/ does not let through."""

    longest: ClassVar[int] = 2_000 * (_MOST_LINES + 1)

    def __init__(self, problems: Iterable[str]) -> None:
        lines = [_readable(problem, 2_000) for problem in problems]
        more = len(lines) - _MOST_LINES
        self.problems = (*lines[:_MOST_LINES], *([f"and {more:,} more problems"] if more > 0 else []))
        super().__init__("\n".join(self.problems))


class MissingPackage(WrongCommand):
    """A member that needs an optional package."""

    def __init__(self, what: str, *, package: str, extra: str | None = None) -> None:
        line = f"pip install 'paceline[{extra}]'" if extra else f"pip install {package}"
        super().__init__(f"{what} needs {package}", remedy=line)


class WorkloadError(PacelineError):
    """The model, its loss or its batch cannot be trained."""


class NonFinite(WorkloadError):
    """NaN or infinity where a number was needed."""


class DamagedFile(PacelineError):
    """A file that does not hold what its header promises."""

    def __init__(self, path: object, offset: int, *, why: str, remedy: str = "get the file again") -> None:
        self.path, self.offset = path, offset
        super().__init__(f"{path} is damaged at offset {offset}", why=why, remedy=remedy)


class NoRoom(PacelineError):
    """Not enough shared memory or disk."""


class PeerLost(PacelineError):
    """Another rank died, left or stopped answering."""

    def __init__(self, what: str, *, rank: int | None = None, why: str = "", remedy: str = "") -> None:
        self.rank = rank
        super().__init__(what, why=why, remedy=remedy)


class CallMismatch(PacelineError):
    """Two ranks make different collective calls where one was expected of both."""

    def __init__(self, what: str, *, rank: int, why: str = "", remedy: str = "") -> None:
        self.rank = rank
        super().__init__(what, why=why, remedy=remedy)


class WorkerFailed(PacelineError):
    """A worker process ended badly; names rank, pid and signal or exit code."""


class TurnFailed(WorkerFailed):
    """A start that contenders share ended badly; `contender` had its turn, and `kind` is the class of its error."""

    def __init__(self, what: str, contender: str, kind: str) -> None:
        self.contender, self.kind = contender, kind
        super().__init__(what)


class Stopped(SystemExit):
    """Somebody asked the launcher to stop, and all workers have ended. Uncaught, it is the exit code 128 + signal."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(self.exit_code)

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"

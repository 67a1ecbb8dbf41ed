"""About: the description of one field of a run. Flags, checks, lists of names and the docs are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

THREADS = 4096  # most threads of one worker
RANKS = 1 << 20  # more ranks than any job has, but few enough to list
SAMPLES = 1 << 24
STEPS = 10**9
LONGEST_WAIT = 10_000_000  # seconds
LARGEST_SEED = 2**63 - 1  # the largest seed that torch takes
LARGEST_NUMBER = 1.7976931348623157e308  # the largest finite number


class Kind(Enum):
    """The subject of a field."""

    SIZE = "size"  # how many workers
    STRATEGY = "strategy"  # a bundle of axes by its name
    AXIS = "axis"  # one choice of how gradients travel
    PLACE = "place"  # where ranks are and how they connect; a user's script gets it too
    WORK = "work"  # what a worker computes
    LENGTH = "length"  # how long, and which random numbers
    LAUNCHER = "launcher"  # settings of the launcher for every process; a script does not see them


class Panel(Enum):
    """The headings that flags are grouped under in --help."""

    TRAVEL = "How gradients travel"
    WORK = "What is trained"
    LENGTH = "How long"
    PLACE = "Where it runs"
    OUTPUT = "Output"


PANELS = {
    Kind.SIZE: Panel.PLACE,
    Kind.STRATEGY: Panel.TRAVEL,
    Kind.AXIS: Panel.TRAVEL,
    Kind.PLACE: Panel.PLACE,
    Kind.WORK: Panel.WORK,
    Kind.LENGTH: Panel.LENGTH,
    Kind.LAUNCHER: Panel.PLACE,
}

# "result": training may give another result. "work": a worker computes something else, or at another speed.
Change = Literal["result", "work"]
CHANGES: dict[Kind, tuple[Change, ...]] = {Kind.WORK: ("result", "work"), Kind.LAUNCHER: ("work",)}


@dataclass(frozen=True, kw_only=True)
class About:
    """The description of a field of `Run`.

    `flags` are its flags, the first of which is used in messages; without any, the flag is the name of the field.
    `published` are flags of other benchmarks that mean the same. `unset` says what None, the default, stands for.
    `race` says how a race treats the field: "common" to all its runs, or a "grid" that the race itself sets. `samples`
    is the unit of the samples whose shape the field describes.
    """

    kind: Kind
    help: str
    flags: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    unset: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    unit: str = ""
    why: str = ""
    changes: tuple[Change, ...] | None = None
    race: Literal["common", "grid"] = "common"
    samples: str = ""

    @property
    def panel(self) -> Panel:
        return PANELS[self.kind]

    @property
    def effects(self) -> tuple[Change, ...]:
        """Return what another value of this field changes."""
        return CHANGES.get(self.kind, ()) if self.changes is None else self.changes

    @property
    def in_grid(self) -> bool:
        """Return whether a race sets the field for each cell, so that it cannot be set for all cells at once."""
        return self.race == "grid" or self.kind in (Kind.STRATEGY, Kind.AXIS)

    def problem(self, value: float) -> str:
        """Return why a number is out of bounds, or an empty text if it is inside."""
        low = (self.least is not None and not value >= self.least) or (
            self.above is not None and not value > self.above
        )
        high = self.most is not None and not value <= self.most
        if not low and not high:
            return ""
        if self.why:
            return self.why
        if not low:
            return f"at most {self.most:,} can be asked for"
        if not self.least:
            return "it cannot be negative"
        return f"at least {self.least:g} {self.unit} is needed" if self.unit else f"it is at least {self.least:g}"

"""Parts of a plan: heats, contenders in a heat, cells, and the starts that cells run in."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from paceline.run.axes import Composed
from paceline.run.run import Run

BASELINE = "one worker"


@dataclass(frozen=True)
class Heat:
    """One model, batch size and number of workers, in which contenders are compared."""

    model: str
    workers: int
    batch: int

    def __str__(self) -> str:
        return f"{self.model}, {self.workers} worker{'s' * (self.workers != 1)}, batch {self.batch}"


@dataclass(frozen=True)
class Cell:
    """One contender in one round. `name` is its file name."""

    name: str
    heat: Heat
    label: str
    round: int
    run: Run
    script: tuple[str, ...] = ()
    same_result: bool = True
    alone: str = ""  # why it runs isolated; empty if it takes turns
    composed: Composed | None = field(default=None, compare=False, repr=False)  # the run, as the plan has checked it

    @property
    def key(self) -> tuple[Heat, str]:
        return self.heat, self.label

    @property
    def title(self) -> str:
        return title_of(self.heat, self.script)


@dataclass(frozen=True)
class Entry:
    """A contender in a heat."""

    heat: Heat
    label: str
    run: Run
    same_result: bool = True
    notes: tuple[str, ...] = ()
    alone: str = ""  # why it runs isolated; empty if it takes turns


@dataclass(frozen=True)
class Start:
    """A fresh set of processes. Several cells take turns in it, or one cell runs alone."""

    cells: tuple[Cell, ...]
    shared: bool

    @property
    def heat(self) -> Heat:
        return self.cells[0].heat

    @property
    def round(self) -> int:
        return self.cells[0].round

    @property
    def key(self) -> tuple[Heat, str]:
        """A key that is equal for starts that take about the same time."""
        return self.heat, "turns" if self.shared else self.cells[0].label


def starts_of(cells: Sequence[Cell], apart: Collection[tuple[Heat, str]] = ()) -> list[Start]:
    """Group the cells of one round into starts; cells named in `apart` run isolated even if they could share."""
    groups: dict[object, list[Cell]] = {}
    for cell in cells:
        shares = not cell.alone and cell.key not in apart
        groups.setdefault(cell.heat if shares else cell.name, []).append(cell)
    return [Start(tuple(group), isinstance(key, Heat)) for key, group in groups.items()]


def title_of(heat: Heat, script: Sequence[str]) -> str:
    """Return the title of a heat; a script has its own model and batch."""
    if not script:
        return str(heat)
    return f"{shlex.join(script)}, {heat.workers} worker{'s' * (heat.workers != 1)}"

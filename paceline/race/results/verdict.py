"""The verdict about a field: who is ahead, by how much, and how sure that is.

A winner must be surely faster than every other contender of its group: with more contenders it is harder to be called
a winner by chance. Strategies that change convergence are a group of their own, because a rate without accuracy makes
no winner. The limit exchanges nothing and never wins. Terminal, page and --json format the same Verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.measure.stats.intervals import ENOUGH, Interval
from paceline.race.results.caveats import caveats
from paceline.race.results.fields import Field
from paceline.race.results.findings import findings
from paceline.race.results.ranking import ranked
from paceline.race.results.standing import KINDS, SAME, Standing
from paceline.race.results.wording import Workers, interval, listed, percent


@dataclass(frozen=True)
class Verdict:
    """The answer for one number of workers; contenders are named by their labels.

    `ratio` is the rate of `best` over the rate of `rival`, over `starts` fresh starts of each. There is a `winner`, or
    there are `ties`, or the starts are too few for either.
    """

    workers: int
    winner: str | None = None
    ties: tuple[str, ...] = ()
    best: str | None = None
    rival: str | None = None
    ratio: Interval | None = None
    starts: int = 0
    rate: float | None = None
    unit: str = ""
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        on = f"on {Workers(self.workers)}"
        if self.best is None:
            return f"No verdict {on}: no contender ended well."
        if self.rival is None or self.ratio is None:
            return f"{self.best}: {self.rate:,.0f} {self.unit}/s {on}."
        if self.winner:
            return f"{self.winner} is {percent(self.ratio)} faster than {self.rival} {on} ({interval(self.ratio)})."
        if self.ties:
            which = f"{self.best} to {self.rival}: " if len(self.ties) > 2 else ""
            return f"{listed(self.ties)} tie {on} ({which}{interval(self.ratio)})."
        few = f"{self.starts} fresh start{'s' * (self.starts != 1)} of {self.best} and {self.rival}"
        return f"No verdict yet {on}: {few} {'is' if self.starts == 1 else 'are'} too few, {ENOUGH} are needed."


def verdict(field: Field, workers: int | None = None) -> Verdict:
    """The verdict for one number of workers, the largest of the field unless another is named."""
    workers = workers or field.worlds[-1]
    order = leaders(field, workers)
    facts = (*findings(field, workers, order), *_aside(_runners(field, workers), order))
    notes = tuple(caveats(field, workers))
    shown = order or field.at(workers)[-1:]
    if not shown:
        return Verdict(workers, findings=facts, notes=notes)
    best, *rivals = shown
    level = [rival for rival in rivals if not best.beats(rival)]
    rival = next(iter(level or rivals), None)
    starts = 0 if rival is None else best.starts_against(rival)
    ties = [s.label for s in level if best.starts_against(s) >= ENOUGH] if starts >= ENOUGH else []
    return Verdict(
        workers=workers,
        winner=best.label if rivals and not level else None,
        ties=(best.label, *ties) if ties else (),
        best=best.label,
        rival=None if rival is None else rival.label,
        ratio=None if rival is None else best.against(rival),
        starts=starts,
        rate=best.rate.centre,
        unit=field.unit,
        findings=facts,
        notes=notes,
    )


def verdicts(field: Field) -> list[Verdict]:
    """The verdict for the largest number of workers first, then for each smaller one on which contenders raced."""
    smaller = [workers for workers in reversed(field.worlds[:-1]) if len(leaders(field, workers)) > 1]
    return [verdict(field, workers) for workers in (field.worlds[-1], *smaller)]


def leaders(field: Field, workers: int | None = None) -> list[Standing]:
    """Contenders that may win, best first: ddp too, but neither the limit nor those that change convergence.

    A few runs beside a race of enough rounds neither win it nor keep others from winning.
    """
    runners = _runners(field, workers or field.worlds[-1])
    counted = _counted(runners)
    return ranked(counted if len(counted) > 1 else runners, rate=lambda s: s.rate.centre, beats=Standing.beats)


def _counted(runners: Sequence[Standing]) -> list[Standing]:
    """Contenders of a race of enough rounds, or of any race if there is none; and those with enough starts."""
    full = {race for s in runners for race, rounds in s.races.items() if rounds >= ENOUGH}
    return [s for s in runners if len(s.rates) >= ENOUGH or (full & s.races.keys() if full else s.races)]


def _runners(field: Field, workers: int) -> list[Standing]:
    """Contenders of the most trusted kind: replayed or forecast rates do not compete with measured ones."""
    same = [s for s in field.at(workers, SAME) if s.reference != "limit"]
    kind = min((s.kind for s in same), key=KINDS.index, default="")
    return [s for s in same if s.kind == kind]


def _aside(runners: Sequence[Standing], order: Sequence[Standing]) -> list[str]:
    """Name the runs that the verdict leaves out."""
    lines = []
    for standing in runners:
        if standing not in order:
            starts = len(standing.rates)
            few = "1 fresh start is" if starts == 1 else f"{starts} fresh starts are"
            lines.append(f"{standing.label} is not part of this verdict: it was not in that race, and {few} too few.")
    return lines

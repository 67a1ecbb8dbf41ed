"""The verdict about a field: who is ahead, by how much, and how sure that is.

A race has one of three results. A contender wins if it is surely faster than every other one of its group; contenders
are level if their difference is surely below a margin; or the race is not decided yet. Strategies that change
convergence form a separate group, because a rate without accuracy makes no winner. The limit exchanges nothing and
never wins. Terminal, page and --json format the same Verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from paceline.measure.stats.intervals import ENOUGH, Interval
from paceline.measure.stats.sequential import LEAST_STARTS, starts_needed
from paceline.race.results.caveats import busy, caveats
from paceline.race.results.fields import Field
from paceline.race.results.findings import ddp_beside, findings
from paceline.race.results.ranking import ranked
from paceline.race.results.standing import CHANGES, KINDS, MARGIN, SAME, Standing
from paceline.race.results.wording import Workers, bracket, listed, several, times

LONG = 60.0  # minutes; a longer wait is not proposed


End = Literal["wins", "level", "open", "few", "alone", "none"]


@dataclass(frozen=True)
class Verdict:
    """The answer for one number of workers; contenders are named by their labels.

    `ratio` is the rate of `best` over the rate of `rival`, over `starts` fresh starts of each. `end` says how it ended:
    wins (there is a `winner`), level (`ties` differ by less than `margin` percent), open (not decided yet, and about
    `more_minutes` would settle it), few (too few rounds), alone (one contender) or none (nobody ended well). `beaten`
    are surely slower than another contender; `undecided` are those that more starts could still separate. `of_ddp` is
    the rate of `best` over the rate of the contender `ddp`, if ddp raced and is not the best itself. `busy` is the one
    of the `notes` that belongs beside the answer: the machine had other work.
    """

    workers: int
    end: End = "none"
    winner: str | None = None
    ties: tuple[str, ...] = ()
    best: str | None = None
    rival: str | None = None
    ratio: Interval | None = None
    ddp: str | None = None
    of_ddp: Interval | None = None
    starts: int = 0
    margin: float = MARGIN
    beaten: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    more_minutes: float | None = None
    rate: float | None = None
    unit: str = ""
    findings: tuple[str, ...] = ()
    busy: str = ""
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        on = f"on {Workers(self.workers)}"
        if self.best is None:
            return f"No verdict {on}: no contender ended well."
        if self.rival is None or self.ratio is None:
            return f"{self.best}: {self.rate:,.0f} {self.unit}/s {on}."
        if self.end == "wins":
            return f"{self.winner} wins {on}: {several(self._ratios)}."
        if self.end == "level":
            which = f"{self.best} to {self.rival}: " if len(self.ties) > 2 else ""
            return (
                f"{listed(self.ties)} are level {on}: the difference is below {self.margin:g} % "
                f"({which}{bracket(self.ratio)}){self._beside_ddp}."
            )
        if self.end == "open":
            return f"Not decided yet {on}: {self.best} runs at {several(self._ratios)}{self._more}."
        few = f"{self.starts} fresh start{'s' * (self.starts != 1)} of {self.best} and {self.rival}"
        enough = f"{'is' if self.starts == 1 else 'are'} too few, {ENOUGH} are needed"
        return f"No verdict yet {on}: {few} {enough}{self._beside_ddp}."

    @property
    def main(self) -> tuple[Interval, str] | None:
        """The ratio of the best contender that a reader asks for first, and to whom: to ddp, or else to its rival."""
        return next(iter(self._ratios), None)

    @property
    def _ratios(self) -> list[tuple[Interval, str]]:
        """The ratios of the best contender: to ddp, then to its rival."""
        pairs = ((self.of_ddp, self.ddp), (self.ratio, self.rival))
        return list({name: (ratio, name) for ratio, name in pairs if ratio is not None and name is not None}.values())

    @property
    def _beside_ddp(self) -> str:
        """The ratio to ddp in words, where neither the best contender nor its rival is ddp."""
        if self.of_ddp is None or self.ddp is None or self.ddp == self.rival:
            return ""
        return f"; {self.best} runs at {times(self.of_ddp, self.ddp)}"

    @property
    def _more(self) -> str:
        """Return in words how much more time would settle it."""
        if self.more_minutes is None:
            return "; a few more starts will tell how long it takes" if self.starts < LEAST_STARTS else ""
        if self.more_minutes > LONG:
            return "; more than an hour would be needed to settle it"
        minutes = max(1, math.ceil(self.more_minutes))
        return f"; about {minutes} more minute{'s' * (minutes != 1)} would settle it"


def verdict(field: Field, workers: int | None = None) -> Verdict:
    """Return the verdict for one number of workers, by default the largest of the field."""
    workers = workers or field.worlds[-1]
    order = leaders(field, workers)
    facts = (*findings(field, workers, order), *_aside(_runners(field, workers), order))
    notes, disturbed = tuple(caveats(field, workers)), busy(field, workers)
    shown = order or field.at(workers)[-1:]
    if not shown:
        return Verdict(workers, findings=facts, busy=disturbed, notes=notes)
    best, *rivals = shown
    answers = {rival.label: best.answer(rival) for rival in rivals}
    unsure = [rival for rival in rivals if answers[rival.label] in ("open", "slower") and not _is_beaten(rival, shown)]
    level = [rival for rival in rivals if answers[rival.label] == "level"]
    rival = next(iter(unsure or level or rivals), None)
    end = _end(best, rival, unsure, level)
    ddp = ddp_beside(field, best)
    return Verdict(
        workers=workers,
        end=end,
        winner=best.label if end == "wins" else None,
        ties=(best.label, *(one.label for one in level)) if end == "level" else (),
        best=best.label,
        rival=None if rival is None else rival.label,
        ratio=None if rival is None else best.against(rival),
        ddp=None if ddp is None else ddp.label,
        of_ddp=None if ddp is None else best.against(ddp),
        starts=0 if rival is None else best.starts_against(rival),
        margin=best.margin,
        beaten=tuple(one.label for one in shown if _is_beaten(one, shown)),
        undecided=(*(one.label for one in unsure), *_unsure_changes(field, workers, best)),
        more_minutes=more_minutes(best, unsure),
        rate=best.rate.centre,
        unit=field.unit,
        findings=facts,
        busy=disturbed,
        notes=notes,
    )


def _end(best: Standing, rival: Standing | None, unsure: Sequence[Standing], level: Sequence[Standing]) -> End:
    if rival is None:
        return "alone"
    if not unsure:
        return "level" if level else "wins"
    return "few" if best.pairs is None and best.starts_against(rival) < ENOUGH else "open"


def _is_beaten(one: Standing, others: Sequence[Standing]) -> bool:
    return any(rival.beats(one) for rival in others if rival is not one)


def _unsure_changes(field: Field, workers: int, best: Standing) -> list[str]:
    """Return contenders that change convergence and whose rates do not differ from the best one yet."""
    changing = [one for one in field.at(workers, CHANGES) if one.kind == best.kind]
    return [one.label for one in changing if one.answer(best) == "open"]


def more_minutes(best: Standing, unsure: Sequence[Standing]) -> float | None:
    """Estimate the minutes after which every open comparison is decided, if rates and spreads do not change."""
    minutes = [_minutes(best, rival) for rival in unsure if best.pairs is not None]
    known = [one for one in minutes if one is not None]
    return max(known) if known and len(known) == len(minutes) else None


def _minutes(best: Standing, rival: Standing) -> float | None:
    logs = best.logs_against(rival)
    needed = starts_needed(logs, best.pairs or 1, best.margin / 100)
    if needed is None:
        return LONG + 1.0 if len(logs) >= LEAST_STARTS else None
    seconds = [float(record.race.get("seconds", 0.0)) for record in best.records]
    return max(1, needed - len(logs)) * fmean(seconds[1:] or seconds) / 60


def verdicts(field: Field) -> list[Verdict]:
    """Return the verdicts for each number of workers on which contenders raced, the largest first."""
    smaller = [workers for workers in reversed(field.worlds[:-1]) if len(leaders(field, workers)) > 1]
    return [verdict(field, workers) for workers in (field.worlds[-1], *smaller)]


def leaders(field: Field, workers: int | None = None) -> list[Standing]:
    """Return the contenders that may win, best first: also ddp, but not limit or those that change convergence.

    A few plain runs beside a race with enough rounds neither win nor keep others from winning.
    """
    runners = _runners(field, workers or field.worlds[-1])
    counted = _counted(runners)
    return ranked(counted if len(counted) > 1 else runners, rate=lambda s: s.rate.centre, beats=Standing.beats)


def _counted(runners: Sequence[Standing]) -> list[Standing]:
    """Return contenders of races with enough rounds, or of any race if there is none, and those with enough starts."""
    full = {race for s in runners for race, rounds in s.races.items() if rounds >= ENOUGH}
    return [s for s in runners if len(s.rates) >= ENOUGH or (full & s.races.keys() if full else s.races)]


def _runners(field: Field, workers: int) -> list[Standing]:
    """Return contenders of the most trusted kind: replayed or forecast rates do not compete with measured ones."""
    same = [s for s in field.at(workers, SAME) if not (s.reference and s.reference.is_bound)]
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

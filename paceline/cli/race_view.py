"""A race as it is seen: a live table on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.bench.redact import redact, redacted, secrets_of
from paceline.bench.stats import ENOUGH, Interval
from paceline.cli.show import plus_minus, table
from paceline.jobs.cells import BASELINE, Cell, Heat
from paceline.jobs.race import Race
from paceline.jobs.standing import Standing, verdict
from paceline.record import Record

WIDEST = 20  # letters of a label in a table


class View:
    """Watches a race; a context, so that the terminal is left in order."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._told = False

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()

    def began(self, race: Race, cell: Cell) -> None:
        if self._live is not None:
            self._live.update(picture(race, cell))

    def ended(self, race: Race, cell: Cell, record: Record) -> None:
        if self._live is not None:
            self._live.update(picture(race, None))
        else:
            self._line(race, cell, record)
        if not self._told and not any(c.round == cell.round and c.name not in race.records for c in race.plan.cells):
            self._told = True
            for line in in_time(race):
                self._console.print(Text(line), soft_wrap=True)

    def _line(self, race: Race, cell: Cell, record: Record) -> None:
        place = f"{race.done:>{len(str(len(race.plan.cells)))}}/{len(race.plan.cells)}"
        left = race.seconds_left()
        about = f", {spoken_time(left)} left" if left else ""
        line = f"{place}  round {cell.round}  {outcome(record):>22}  {short(cell.label)}{about}"
        self._console.print(Text(line), soft_wrap=True)  # a label may look like markup


def in_time(race: Race) -> Iterator[str]:
    """After a round: how many will fit into the minutes, if that is not all of them."""
    fit, rounds, minutes = race.rounds_in_time, race.plan.suite.rounds, race.plan.suite.minutes
    if fit is not None and fit < rounds:
        lacking = " and give no verdict" if fit < ENOUGH <= rounds else ""
        yield (
            f"{fit} of {rounds} rounds will fit into {minutes:g} minutes{lacking}; "
            f"--minutes {race.minutes_needed} is enough for all"
        )


def outcome(record: Record) -> str:
    if record.verdict == "failed":
        return "failed"
    return f"{record.rate['total']['mean']:.1f} {record.unit}/sec"


def picture(race: Race, under_way: Cell | None) -> Table:
    """What is known so far, one row per contender."""
    left = race.seconds_left()
    title = f"{race.done} of {len(race.plan.cells)} cells" + (f", about {spoken_time(left)} left" if left else "")
    drawn = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for head in ("", "per second", "of ddp", "rounds"):
        drawn.add_column(head, justify="left" if not head else "right")
    for heat in race.plan.heats:
        drawn.add_row(Text(public(race.plan.title(heat)), style="bold"), "", "", "")
        for standing in race.standings(heat):
            now = under_way is not None and under_way.key == (standing.entry.heat, standing.label)
            label = Text(("> " if now else "  ") + short(standing.label))
            drawn.add_row(label, *_cells_of(race, heat, standing))
    return drawn


def _cells_of(race: Race, heat: Heat, standing: Standing) -> tuple[str, str, str]:
    ddp = next((s for s in race.standings(heat) if s.label == "ddp"), None)
    alone = standing.label == BASELINE
    ratio = None if ddp is None or alone else standing.against(ddp)
    planned = sum(cell.key == (standing.entry.heat, standing.label) for cell in race.plan.cells)
    return _rate(standing), _shown(ratio), f"{len(standing.records)}/{planned}"


def _shown(interval: Interval | None, digits: int = 2) -> str:
    return "-" if interval is None else plus_minus(interval, digits)


def _rate(standing: Standing) -> str:
    """With a digit after the point where that says something."""
    rate = standing.rate
    return _shown(rate, 0 if rate is not None and rate.centre >= 1000 else 1)


def public(text: str) -> str:
    """A text as it may be printed: commands can hold secrets, and output is kept in logs."""
    return redact(text, secrets_of(os.environ))


def short(label: str) -> str:
    label = public(label)
    return label if len(label) <= WIDEST else label[: WIDEST - 3] + "..."


def spoken_time(seconds: float | None) -> str:
    whole = round(seconds or 0)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )


def closing(race: Race) -> Iterator[str]:
    """Tables, verdicts and failures, heat by heat."""
    for heat in race.plan.heats:
        standings = race.standings(heat)
        yield ""
        yield public(race.plan.title(heat))
        yield from table_of(race, heat, standings)
        yield from speedups(race, heat, standings)
        yield ""
        for line in verdict(standings):
            yield from wrapped(line)
    yield ""
    yield from wrapped(
        "+- is a 95 % interval over rounds (fresh processes); ratios compare the same round. scaling is the rate over "
        "workers times the one-worker rate. ? stands for an interval wider than its figure."
    )
    if any(not entry.same_result for entry in race.plan.entries):
        yield "* changes convergence: compare accuracy, not only speed"
    for cell, record in race.failures:
        yield from wrapped(
            f"failed: {short(cell.label)}, {race.plan.title(cell.heat)}, round {cell.round}: {record.failure}"
        )
    if race.cut_short:
        yield from wrapped(
            f"{race.rounds} of {race.plan.suite.rounds} rounds fit into {race.plan.suite.minutes:g} minutes. try: the "
            f"same command with --retry, which runs the others, or a new race with --minutes {race.minutes_needed}"
        )


def table_of(race: Race, heat: Heat, standings: list[Standing]) -> Iterator[str]:
    unit = next((s.last.unit for s in standings if s.last is not None), "")
    head = ("contender", f"{unit}/sec", "of ddp", "of limit", "scaling")
    yield from table(head, [_row(race, heat, standing, standings) for standing in standings])
    for standing in standings:
        if len(standing.label) > WIDEST:
            yield from wrapped(f"{short(standing.label)} is {standing.label}")


def _row(race: Race, heat: Heat, standing: Standing, standings: list[Standing]) -> tuple[str, ...]:
    known = {s.label: s for s in standings}
    alone = standing.label == BASELINE
    ratios = [None if alone or name not in known else standing.against(known[name]) for name in ("ddp", "limit")]
    speedup = None if alone else standing.speedup(known[BASELINE])
    scaling = None if speedup is None else _divided(speedup, heat.workers)
    mark = ("" if standing.kind == "measured" else f" ({standing.kind})") + ("" if standing.entry.same_result else " *")
    return short(standing.label) + mark, _rate(standing), *map(_shown, ratios), _shown(scaling)


def speedups(race: Race, heat: Heat, standings: list[Standing]) -> Iterator[str]:
    """How many times faster than one worker; what was published of it stands beside."""
    alone = race.baseline(heat)
    found = [(s.label, s.speedup(alone)) for s in standings if s.label != BASELINE and heat.workers > 1]
    told = [f"{short(label)} {_shown(speedup)}" for label, speedup in found if speedup is not None]
    if told:
        yield from wrapped(f"speed-up over one worker: {', '.join(told)}")
    for figure in race.plan.suite.published:
        if figure.is_about(heat.model, heat.workers):
            yield from wrapped(f"published: {figure.text}")


def _divided(interval: Interval, by: int) -> Interval:
    low, high = (None if side is None else side / by for side in (interval.low, interval.high))
    return Interval(interval.centre / by, low, high)


def wrapped(text: str, width: int = 80) -> Iterator[str]:
    yield from textwrap.wrap(public(text), width, subsequent_indent="  ", break_long_words=False)


def as_json(race: Race) -> dict[str, Any]:
    """The race as values: rates of every round, verdicts, and where the records are; without secrets."""
    values = {
        "folder": str(race.folder.path),
        "rounds": race.rounds,
        "heats": [
            {
                "what": race.plan.title(heat),
                "workers": heat.workers,
                "published": [p.text for p in race.plan.suite.published if p.is_about(heat.model, heat.workers)],
                "contenders": [_told(standing) for standing in race.standings(heat)],
                "verdict": list(verdict(race.standings(heat))),
            }
            for heat in race.plan.heats
        ],
        "failed": [
            {"contender": cell.label, "round": cell.round, "why": record.failure} for cell, record in race.failures
        ],
    }
    return dict(redacted(values, secrets_of(os.environ)))


def _told(standing: Standing) -> dict[str, Any]:
    latest = [*standing.records.values()][::-1]  # not every round has a baseline
    return {
        "name": standing.label,
        "kind": standing.kind,
        "same_result": standing.entry.same_result,
        "rates": standing.rates,
        "records": [record.id for record in standing.records.values()],
        "efficiency": next((record.efficiency for record in latest if record.efficiency), {}),
    }

"""A race on the screen: a live table on a terminal, plain lines elsewhere, and the table at the end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline.cli.show import plus_minus, table
from paceline.files.redact import redacted, secrets_of
from paceline.measure.stats.intervals import Interval, rate_interval
from paceline.race.cells import BASELINE, Entry, Heat, Start
from paceline.race.lines import WIDEST, line_of, public, short, spoken_time, wrapped
from paceline.race.race import Race
from paceline.race.results.standing import Standing, mean_parts, rate_of
from paceline.race.results.verdict import Verdict, verdict
from paceline.run.reference import COMPARED


class RaceView:
    """A watcher that shows a race; a context manager, so that the terminal is restored at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None

    def __enter__(self) -> RaceView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(Text(""))
            self._live.stop()

    def began(self, race: Race, start: Start) -> None:
        if self._live is not None:
            self._live.update(picture(race, start))

    def progress(self, race: Race, start: Start, line: str) -> None:
        if self._live is not None:
            self._live.update(picture(race, start, line))

    def ended(self, race: Race, start: Start) -> None:
        if self._live is not None:
            self._live.update(picture(race, None))
        else:
            self._say(line_of(race, start))

    def noted(self, race: Race, text: str) -> None:
        for line in wrapped(f"note: {text}"):
            self._say(line)

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)  # a label may look like markup


def picture(race: Race, under_way: Start | None, line: str = "") -> Group:
    """Draw the results so far: one row per contender, the start that runs, and what would be concluded now."""
    left = race.seconds_left()
    drawn = [part for heat in race.plan.heats for part in _heat(race, heat, under_way)]
    title = f"{race.done} records" + (f", at most {spoken_time(left)} left" if left else "")
    if under_way is not None:
        title += f"; round {under_way.round}" + (
            f", {public(line)}" if line.startswith(("turn ", "repeat ", "memory ")) else ""
        )
    concluded = [Text(each) for heat in race.plan.heats for each in wrapped(_now(race, heat))]
    return Group(Text(title), *drawn, *concluded)


# The columns of the live table and their widths; together with two blanks between them they fit into 80 columns.
_COLUMNS = {"": WIDEST + 2, "per second": 10, "of ddp": 12, "of limit": 12, "waiting": 7, "starts": 6}


def _heat(race: Race, heat: Heat, under_way: Start | None) -> Iterator[Text | Table]:
    """Yield the title and the table of one heat."""
    yield Text(public(race.plan.title(heat)), style="bold")
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head, width in _COLUMNS.items():
        drawn.add_column(head, justify="right" if head else "left", no_wrap=True, min_width=width)
    for entry in race.entries(heat):
        now = under_way is not None and any(cell.key == (entry.heat, entry.label) for cell in under_way.cells)
        drawn.add_row(Text(("> " if now else "  ") + short(entry.label)), *_cells_of(race, entry))
    yield drawn


def _now(race: Race, heat: Heat) -> str:
    """Return the verdict about a heat, as it would be if the race ended now."""
    known = race.field_of(heat).at(heat.workers)
    headline = race.verdict(heat).headline if known else "nothing is known yet."
    which = f"{heat.model}: " if len(race.plan.heats) > 1 else ""
    return f"now: {which}{headline}"


def _cells_of(race: Race, entry: Entry) -> tuple[str, ...]:
    standing = race.standing(entry.heat, entry.label)
    ratios = (_shown(_of_reference(race, entry, which.name)) for which in COMPARED)
    rate = "-" if standing is None else f"{standing.rate.centre:,.{0 if standing.rate.centre >= 1000 else 1}f}"
    return rate, *ratios, _waiting(standing), str(0 if standing is None else len(standing.records))


def _waiting(standing: Standing | None) -> str:
    """Return the share of a step that a contender waits; unknown for ddp, which waits inside backward."""
    parts = {} if standing is None or standing.waits_in_backward else mean_parts(standing)
    return f"{100 * parts['exposed'] / parts['step']:.0f} %" if parts.get("step") else "-"


def _of_reference(race: Race, entry: Entry, name: str) -> Interval | None:
    """Return the ratio to ddp or limit in the same heat, paired by round."""
    if entry.label == BASELINE or name not in {one.label for one in race.plan.entries_of(entry.heat)}:
        return None
    mine, reference = race.standing(entry.heat, entry.label), race.standing(entry.heat, name)
    return None if mine is None or reference is None else mine.against(reference)


def _shown(interval: Interval | None, digits: int = 2) -> str:
    return "-" if interval is None else plus_minus(interval, digits)


def _rate(standing: Standing | None) -> str:
    """Format the mean rate over rounds; rates below 1000 get a decimal."""
    rate = None if standing is None else rate_interval(standing.rates)
    return _shown(rate, 0 if rate is not None and rate.centre >= 1000 else 1)


def closing(race: Race) -> Iterator[str]:
    """Yield the tables, verdicts and failures of a race, heat by heat."""
    for heat in race.plan.heats:
        yield ""
        yield public(race.plan.title(heat))
        yield from table_of(race, heat)
        yield from speedups(race, heat)
        yield ""
        for line in spoken(verdict(race.field_of(heat), heat.workers)):
            yield from wrapped(line)
    yield ""
    yield from wrapped(_legend(race))
    if any(not entry.same_result for entry in race.plan.entries):
        yield "* changes convergence: compare accuracy, not only speed"
    if _marked(race):
        yield "+ ran isolated, in processes of its own: its ratios to the others are not paired"
    yield from _failures(race)
    if race.cut_short and not race.plan.suite.until_sure:
        yield from wrapped(
            f"{race.rounds} of {race.plan.suite.rounds} rounds fit into {race.plan.suite.minutes:g} minutes. try: the "
            "same command with --retry, which runs the others"
        )
    elif race.cut_short:
        more = race.plan.suite.minutes_of_a_heat
        yield f"go on: the same command measures for up to {more:g} more minutes of each heat"


def _legend(race: Race) -> str:
    turns = any(map(_takes_turns, race.plan.entries))
    starts = (
        "fresh starts; contenders of a start take turns"
        if turns
        else ("rounds (fresh processes); ratios compare the same round")
    )
    looks = " It allows for looking after every start." if race.plan.suite.until_sure else ""
    return (
        f"+- is a 95 % interval over {starts}.{looks}{_PAIRED if turns else ''} scaling is the rate over workers times "
        "the one-worker rate. ? stands for an interval wider than its figure."
    )


_PAIRED = (
    " of ddp and of limit compare turns of the same start, without the extreme ones; rates are means over all turns, "
    "so their quotient may differ a little."
)


def _takes_turns(entry: Entry) -> bool:
    return not entry.alone


def _marked(race: Race) -> set[tuple[Heat, str]]:
    """Return the contenders that ran isolated while others took turns."""
    mixed = {entry.heat for entry in race.plan.entries if not entry.alone}
    entries = [entry for entry in race.plan.entries if entry.heat in mixed and entry.label != BASELINE]
    keys = [(entry.heat, entry.label) for entry in entries if entry.alone or (entry.heat, entry.label) in race.apart]
    return set() if len(keys) == len(entries) else set(keys)


def _failures(race: Race) -> Iterator[str]:
    """Yield each failure once, with all cells in which it happened."""
    alike: dict[str, list[str]] = {}
    for cell, record in race.failures:
        where = f"{short(cell.label)}, {race.plan.title(cell.heat)}, round {cell.round}"
        alike.setdefault(_without_pid(str(record.failure)), []).append(f"{where}: {record.failure}")
    for cells in alike.values():
        more = f" ({len(cells) - 1} more failed alike)" if len(cells) > 1 else ""
        yield from wrapped(f"failed: {cells[0]}{more}")


def _without_pid(text: str) -> str:
    return re.sub(r" ?\(pid \d+\)|, pid \d+", "", text)


def spoken(judged: Verdict) -> Iterator[str]:
    """Yield a verdict as lines: the answer, further results, and notes."""
    yield judged.headline
    yield from judged.findings
    yield from (f"note: {note}" for note in judged.notes)


def table_of(race: Race, heat: Heat) -> Iterator[str]:
    entries = race.entries(heat)
    head = ("contender", f"{race.field_of(heat).unit}/sec", "of ddp", "of limit", "scaling")
    yield from table(head, [_row(race, heat, entry) for entry in entries])
    for entry in entries:
        if len(entry.label) > WIDEST:
            yield from wrapped(f"{short(entry.label)} is {entry.label}")


def _row(race: Race, heat: Heat, entry: Entry) -> tuple[str, ...]:
    standing = race.standing(entry.heat, entry.label)
    ratios = [_of_reference(race, entry, which.name) for which in COMPARED]
    speedup = None if entry.label == BASELINE else race.speedup(entry)
    scaling = None if speedup is None else _divided(speedup, heat.workers)
    kind = "" if standing is None or standing.kind == "measured" else f" ({standing.kind})"
    isolated = " +" if (entry.heat, entry.label) in _marked(race) else ""
    mark = kind + ("" if entry.same_result else " *") + isolated
    return short(entry.label) + mark, _rate(standing), *map(_shown, ratios), _shown(scaling)


def speedups(race: Race, heat: Heat) -> Iterator[str]:
    """Yield the speed-ups over one worker, with published ones beside them."""
    entries = [entry for entry in race.entries(heat) if entry.label != BASELINE and heat.workers > 1]
    known = [(entry.label, speedup) for entry in entries if (speedup := race.speedup(entry)) is not None]
    if known:
        shown = ", ".join(f"{short(label)} {_shown(speedup)}" for label, speedup in known)
        yield from wrapped(f"speed-up over one worker: {shown}")
    for figure in race.plan.suite.published:
        if figure.is_about(heat.model, heat.workers):
            yield from wrapped(f"published: {figure.text}")


def _divided(interval: Interval, by: int) -> Interval:
    low, high = (None if side is None else side / by for side in (interval.low, interval.high))
    return Interval(interval.centre / by, low, high)


def as_json(race: Race) -> dict[str, Any]:
    """Return the race as JSON values, without secrets: rates of every round, verdicts, and paths of records."""
    values = {
        "folder": str(race.folder.path),
        "rounds": race.rounds,
        "heats": [
            {
                "what": race.plan.title(heat),
                "workers": heat.workers,
                "published": [p.text for p in race.plan.suite.published if p.is_about(heat.model, heat.workers)],
                "contenders": [_values(race, entry) for entry in race.entries(heat)],
                "verdict": verdict_values(verdict(race.field_of(heat), heat.workers)),
            }
            for heat in race.plan.heats
        ],
        "failed": [
            {"contender": cell.label, "round": cell.round, "why": record.failure} for cell, record in race.failures
        ],
    }
    return dict(redacted(values, secrets_of(os.environ)))


def verdict_values(judged: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON values, with its sentence."""
    return {**asdict(judged), "text": judged.headline}


def _values(race: Race, entry: Entry) -> dict[str, Any]:
    standing = race.standing(entry.heat, entry.label)
    records = standing.records if standing is not None else ()
    ratios = {f"of_{which.name}": _of_reference(race, entry, which.name) for which in COMPARED}
    return {
        "name": entry.label,
        "kind": standing.kind if standing is not None else "measured",
        "same_result": entry.same_result,
        "rates": {record.race["round"]: rate_of(record) for record in records},
        **{name: None if ratio is None else asdict(ratio) for name, ratio in ratios.items()},
        "records": [record.id for record in records],
        # not every round has a baseline
        "efficiency": next((record.efficiency for record in reversed(records) if record.efficiency), {}),
    }

"""A race in lines of text, one for each start that has ended: for a terminal without a live view, and for Python."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator

from paceline.files.redact import redact, secrets_of
from paceline.measure.record.record import Record
from paceline.race.cells import Heat, Start
from paceline.race.race import Nobody, Race

WIDEST = 20  # letters of a label in a table
WIDTH = 80  # columns of a terminal


class PrintedLines(Nobody):
    """Watch a race and print a line to stderr when a start has ended."""

    def ended(self, race: Race, start: Start) -> None:
        print(line_of(race, start), file=sys.stderr, flush=True)

    def noted(self, race: Race, text: str) -> None:
        for line in wrapped(f"note: {text}"):
            print(line, file=sys.stderr, flush=True)


def line_of(race: Race, start: Start) -> str:
    """Return one line about a start that has ended."""
    left, rounds = race.seconds_left(), race.plan.suite.rounds
    number = f"round {start.round}" + (f"/{rounds}" if rounds else "")
    about = f", {spoken_time(left)} left" if left else ""
    if not start.shared:
        cell = start.cells[0]
        return f"{number:>9}  {outcome(race.records[cell.name]):>22}  {short(cell.label)}{about}"
    heat = start.heat
    line = f"{number:>9}  {_ratio_line(race, heat):>22}  "
    return f"{line}{_cut(race.plan.title(heat), WIDTH - len(line) - len(about))}{about}"


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(0, room - 3)]}..."


def _ratio_line(race: Race, heat: Heat) -> str:
    """Return the main comparison of a heat in short form, such as: allreduce 1.17x ddp."""
    judged = race.verdict(heat)
    if judged.best is None or judged.main is None:
        return f"{len(race.field_of(heat).at(heat.workers))} in turns"
    ratio, rival = judged.main
    return f"{short(judged.best)} {ratio.centre:.2f}x {short(rival)}"


def outcome(record: Record) -> str:
    if record.verdict == "failed":
        return "failed"
    return f"{record.rate['total']['mean']:.1f} {record.unit}/sec"


def short(label: str) -> str:
    label = public(label)
    return label if len(label) <= WIDEST else label[: WIDEST - 3] + "..."


def spoken_time(seconds: float | None) -> str:
    whole = round(seconds or 0)
    return (
        f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}" if whole >= 3600 else f"{whole // 60}:{whole % 60:02}"
    )


def wrapped(text: str, width: int = WIDTH) -> Iterator[str]:
    yield from textwrap.wrap(public(text), width, subsequent_indent="  ", break_long_words=False)


def public(text: str) -> str:
    """Return a text without secrets: commands may hold some, and output is kept in logs."""
    return redact(text, secrets_of(os.environ))

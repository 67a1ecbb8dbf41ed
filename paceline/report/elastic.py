"""The rate of an elastic job over time, with every incident marked."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.elastic.recoveries import line_of
from paceline.measure.record.figures import TimedIncident
from paceline.measure.record.record import Record
from paceline.report.chart import Line, Lines
from paceline.report.palette import SERIES
from paceline.report.plots import Figure
from paceline.report.tables import Table

PHASES = ("detect", "reconfigure", "commit", "seconds")


def rate_over_time(record: Record) -> Figure | None:
    """Return the chart of one record, or None if it is not of an elastic job."""
    points = tuple((point[0], point[1]) for point in record.elastic.get("rate", ()))
    if not points:
        return None
    steps = Line("committed steps per second", SERIES[0], points)
    members = Line("members", SERIES[1], tuple((p[0], p[2]) for p in record.elastic["rate"]), dash="6 3")
    kinds = dict.fromkeys(incident["what"] for incident in record.incidents)
    marks = [_marks(kind, SERIES[(2 + k) % len(SERIES)], record, points) for k, kind in enumerate(kinds)]
    return Figure(
        name=f"elastic-{record.id}",
        title="Committed steps over time",
        says=f"{len(record.incidents)} incidents in {record.elastic.get('generations', 0)} generations.",
        chart=Lines("seconds", "steps/s, and members", (steps, members, *marks), from_zero=True),
        table=incident_table(record),
    )


def _marks(kind: str, color: str, record: Record, points: tuple[tuple[float, float], ...]) -> Line:
    """Return a mark for every incident of one kind: a dot with its words, and a line down to the axis."""
    chosen = [incident for incident in record.incidents if incident["what"] == kind]
    top = max(rate for _, rate in points) or 1.0
    places = [min(max(incident.get("at", 0.0), points[0][0]), points[-1][0]) for incident in chosen]
    return Line(
        kind,
        color,
        tuple((x, top) for x in places),
        intervals=tuple((x, 0.0, top) for x in places),
        dots=True,
        says=tuple(f"{incident.get('at', 0.0):.1f} s: {line_of(dict(incident))}" for incident in chosen),
        joined=False,
    )


def incident_table(record: Record) -> Table:
    """Return a row per incident, with its phases in seconds and the shards that were computed again."""
    head = ("incident", "at s", "member", "how", *(f"{name} s" for name in PHASES), "shards again")
    return Table(head, tuple(_row(incident) for incident in record.incidents))


def task_table(records: Sequence[Record]) -> Table:
    """Return the published columns of elastic jobs: seconds of a task and of its parts; and who has how many shards."""
    head = ("run", "batches", "task s", "allreduce s", "pack s", "apply s", "shards by rank", "dealt anew")
    return Table(head, tuple(_task_row(record) for record in records if record.task))


def _task_row(record: Record) -> tuple[str, ...]:
    seconds = [record.task.get(name) for name in ("task", "allreduce", "pack", "update")]
    cells = ["-" if not isinstance(value, float) else f"{value:.3f}" for value in seconds]
    shards = " ".join(map(str, record.elastic.get("shards", ()))) or "-"
    return (record.id[-6:], str(record.task["batches"]), *cells, shards, str(record.elastic.get("deals", "-")))


def _row(incident: TimedIncident) -> tuple[str, ...]:
    numbers = [incident.get(name) for name in PHASES]
    cells = ["-" if not isinstance(number, float) else f"{number:.3f}" for number in numbers]
    at, shards = f"{incident.get('at', 0.0):.1f}", incident.get("shards")
    how, member = incident.get("how", "-"), incident.get("member", "-")
    return (incident["what"], at, member, how, *cells, "-" if shards is None else str(shards))

"""The record of an elastic job, made from the journal of its coordinator.

Members come and go, so that there is no series of steps of each rank: the unit is the committed step, the rate is over
time, and parts are means over all steps of all members. Parts add up to the time of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.cluster.environment import capture
from paceline.elastic.journal import Journal, Row
from paceline.elastic.progress import PARTS, rates, step_seconds
from paceline.elastic.protocol import Group
from paceline.elastic.recoveries import ENDING
from paceline.measure.combining import UPDATES, new_id, now_text, rate
from paceline.measure.communication import TASK_BATCHES
from paceline.measure.record.figures import ElasticPart, TaskColumns, TimedIncident
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import summary
from paceline.run.run import Run

KINDS = (*ENDING, "fenced", "no checkpoint")
LEAST = 4  # rows of progress
_NUMBERS = ("seconds", "detect", "reconfigure", "commit")


def elastic_record(run: Run, journal: Path, *, text: str, comm: str = "shm") -> Record | None:
    """Return the record of a job that has ended, or None if it was too short to have a rate."""
    opened = Journal(journal)
    try:
        rows, incidents = opened.history(), list(opened.incidents())
        groups, rollbacks = opened.groups(), opened.rollbacks()
    finally:
        opened.close()
    seconds = step_seconds(rows)
    if len(rows) < LEAST or not seconds:
        return None
    began, parts = rows[0].at, breakdown_of(rows)
    part: ElasticPart = {
        "generations": len(groups),
        "members": max(len(group.members) for group in groups),
        "rollbacks": len(rollbacks),
        "steps": rows[-1].steps,
        "shards": list(groups[-1].lengths),
        "deals": deals_of(groups),
        "rate": [[round(at - began, 3), round(value, 4), float(members)] for at, value, members in rates(rows)],
    }
    return Record(
        id=new_id(),
        text=text,
        time=now_text(),
        run=run,
        environment=capture(),
        verdict="unsteady" if any(line["what"] in ENDING for line in incidents) else "steady",
        workers=run.workers,
        device="cpu",
        unit=UPDATES,
        comm=comm,
        rate={"total": rate(_block_rates(rows), seconds), "per_worker": []},
        step=summary(seconds),
        series={"judged": False, "seconds": seconds, "warmup": [], "why": ""},
        breakdown=parts,
        task=task_columns(parts, run.batches_per_task or TASK_BATCHES),
        incidents=[timed(line, began) for line in incidents if line["what"] in KINDS],
        elastic=part,
    )


def _block_rates(rows: list[Row], blocks: int = 5) -> list[float]:
    """Return committed steps per second in parts of the job that are about equally long."""
    bounds = [rows[round(k * (len(rows) - 1) / blocks)] for k in range(blocks + 1)]
    pairs = [(a, b) for a, b in pairwise(bounds) if b.at > a.at and b.steps > a.steps]
    return [(b.steps - a.steps) / (b.at - a.at) for a, b in pairs] or [1 / fmean(step_seconds(rows))]


def breakdown_of(rows: list[Row]) -> dict[str, float]:
    """Return the mean seconds of each part of a step, and of the whole step, over all members."""
    parts = rows[-1].parts
    count = parts.get("steps", 0.0) or 1.0
    means = {name: parts.get(name, 0.0) / count for name in PARTS}
    whole = sum(means.values()) or fmean(step_seconds(rows))
    return {"step": whole, **means}


def task_columns(parts: dict[str, float], batches: int) -> TaskColumns:
    """Return the published columns: seconds of a task of `batches` steps, and of its parts, over all members."""
    exchange = parts["wire"] + parts["vote"]  # nothing of it is hidden behind backward
    return {
        "batches": batches,
        "task": batches * parts["step"],
        "allreduce": batches * exchange,
        "in_flight": batches * exchange,
        "pack": batches * parts["pack"],
        "update": batches * parts["update"],
    }


def deals_of(groups: Sequence[Group]) -> int:
    """Return how many groups had the members of the one before, with other shares."""
    return sum(a.members == b.members and a.lengths != b.lengths for a, b in pairwise(groups))


def timed(line: dict[str, Any], began: float) -> TimedIncident:
    """Return an incident of the journal as it stands in a record."""
    made: TimedIncident = {"what": str(line["what"]), "count": 1, "at": round(float(line["at"]) - began, 3)}
    made["generation"] = int(line.get("generation") or 0)
    if line.get("member"):
        made["member"] = str(line["member"])
    if "rank" in line:
        made["rank"] = int(line["rank"])
    if "how" in line:
        made["how"] = str(line["how"])
    for name in _NUMBERS:
        if name in line:
            made[name] = float(line[name])  # type: ignore[literal-required]
    if "shards" in line:
        made["shards"] = int(line["shards"])
    return made

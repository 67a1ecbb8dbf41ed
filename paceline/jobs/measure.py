"""One configuration, measured: compose, launch, collect what every rank saw, make a record."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from paceline.bench.breakdown import breakdown, over_ranks
from paceline.bench.clock import align
from paceline.bench.compute import MENU as COMPUTE
from paceline.bench.stats import mean_interval, standard_error, summary
from paceline.compose import Machine, compose, servers_of
from paceline.jobs.folder import job_folder
from paceline.jobs.places import places_of
from paceline.launchers.local import Local
from paceline.record import Record
from paceline.rules.server import largest_lead
from paceline.run import Run

OnLine = Callable[[int, str, str], None]


def machine() -> Machine:
    """What this host offers, without torch."""
    return Machine(gpus=len(list(Path("/dev").glob("nvidia[0-9]*"))))


def check(run: Run) -> list[str]:
    """Refuse what cannot run, before anything starts; the notes of what can."""
    axes = compose(run, machine())
    return [] if axes is None else list(axes.notes)


def measure(run: Run, on_line: OnLine | None = None) -> tuple[Record, list[list[Any]]]:
    """The record of a run, and the events that go beside it."""
    notes = check(run)
    with job_folder() as folder, places_of(run) as places:
        network = places.measure()
        (folder / "run.json").write_text(run.model_dump_json())
        argv = [sys.executable, "-m", "paceline.worker"]
        with Local().start(
            argv,
            workers=run.workers,
            servers=servers_of(run),
            folder=folder,
            environ=_environ(run),
            prefix=False,
            on_line=on_line,
            place=places.place,
        ) as job:
            job.wait()
        ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(run.workers)]
    return make_record(run, notes, ranks, network), aligned(ranks)


def aligned(ranks: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """The events of every rank in rank 0's time."""
    offsets = align([rank["meetings"] for rank in ranks])["offsets"]
    return [
        [[seconds - offset, *rest] for seconds, *rest in rank["events"]]
        for rank, offset in zip(ranks, offsets, strict=True)
    ]


def _environ(run: Run) -> dict[str, str]:
    environ = dict(os.environ)
    if run.threads:
        environ["OMP_NUM_THREADS"] = str(run.threads)
    return environ


def make_record(
    run: Run, notes: Sequence[str], ranks: Sequence[dict[str, Any]], network: dict[str, Any] | None = None
) -> Record:
    first = ranks[0]
    totals = [sum(rank["samples"] / rank["seconds"][b] for rank in ranks) for b in range(len(first["seconds"]))]
    parts = over_ranks([breakdown(rank["steps"], rank["parts"]) for rank in ranks])
    edges = [rank["received_per_step"] for rank in ranks]
    # What servers received is what workers pushed to them.
    edges += [
        [*column, *(0,) * len(column)][: len(edges[0])]
        for column in zip(*(r["pushed_per_step"] for r in ranks), strict=True)
    ]
    return Record(
        kind=COMPUTE.make(run.compute).kind,
        id=f"{datetime.now(timezone.utc):%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:6]}",
        text=run.text,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        run=run,
        environment=first["environment"],
        notes=[*notes, *first["notes"]],
        verdict=verdict(totals),
        workers=run.workers,
        device=first["device"],
        unit=first["unit"],
        comm=first["comm"],
        rate={
            "total": rate(totals),
            "per_worker": [fmean(r["samples"] / s for s in r["seconds"]) for r in ranks],
        },
        step=summary([seconds for rank in ranks for seconds in rank["steps"]]),
        breakdown=parts,
        bytes={
            "sent_per_step": [sum(row[rank] for row in edges) for rank in range(len(edges))],
            "received_per_step": [sum(row) for row in edges],
            "per_edge": edges,
            **_coded(ranks, before_compression_per_step="dense", after_compression_per_step="coded"),
        },
        resources={
            "pss_peak": [rank["pss_peak"] for rank in ranks],
            "rss_peak": [rank["rss_peak"] for rank in ranks],
            "cpu_seconds_per_step": [rank["cpu_seconds_per_step"] for rank in ranks],
            **_coded(ranks, encode_seconds_per_step="encode", decode_seconds_per_step="decode"),
        },
        plan=first["plan"],
        profile=first["profile"],
        network={**(network or {}), **first["network"]},
        replicas=first["replicas"],
        staleness=_staleness([rank["staleness"] for rank in ranks]),
        loss=[fmean(values) for values in zip(*(rank["losses"] for rank in ranks), strict=True)],
        accuracy=first["accuracy"],
        incidents=_skips(first),
        clock=align([rank["meetings"] for rank in ranks]),
    )


def _staleness(ranks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The bound of rule server, and how far ahead of the slowest a worker really was."""
    if not ranks[0]:
        return {}
    lead = largest_lead([rank["pushed"] for rank in ranks], [rank["pulled"] for rank in ranks])
    return {"bound": ranks[0]["bound"], "largest_lead": lead}


def _coded(ranks: Sequence[dict[str, Any]], **names: str) -> dict[str, list[float]]:
    """What compressing cost each rank per step; nothing where there is no compressor."""
    coding = [rank["coding"] for rank in ranks]
    return {name: [one[key] for one in coding] for name, key in names.items()} if coding[0] else {}


def _skips(first: dict[str, Any]) -> list[dict[str, Any]]:
    count = first["skipped"]
    return [{"what": "steps skipped because the scaled gradient overflowed", "count": count}] if count else []


def rate(totals: Sequence[float]) -> dict[str, Any]:
    """Samples per second of the whole job over repeats inside one set of processes."""
    interval = mean_interval(totals)
    return {
        "median": median(totals),
        "mean": interval.centre,
        "low": interval.low,
        "high": interval.high,
        "confidence": interval.confidence,
        "error": 1.96 * standard_error(totals),
        "repeats": list(totals),
    }


def verdict(totals: Sequence[float]) -> Literal["steady", "unsteady"]:
    """Unsteady when the later half of the repeats has another centre than the earlier one, by more than a tenth."""
    if len(totals) < 2:
        return "unsteady"
    half = len(totals) // 2
    early, late = median(totals[:half]), median(totals[-half:])
    return "steady" if abs(early - late) <= 0.1 * max(early, late) else "unsteady"

"""Forecasts as records of kind forecast, so that reports show them beside measured ones."""

from __future__ import annotations

import uuid
from datetime import datetime, timezone

from paceline.cluster.environment import capture
from paceline.forecast.study import Point, Study
from paceline.forecast.wording import bottleneck
from paceline.measure.record.record import Record
from paceline.run.run import Run
from paceline.workload.layouts import read as read_layouts

LIMIT = "limited by: "


def run_of(study: Study, point: Point) -> Run:
    fabric = study.fabric.resized(point.workers)
    nodes = f"{fabric.nodes}x{fabric.ranks}" if fabric.nodes > 1 else None
    return study.run.with_(workers=fabric.size, strategy=point.strategy, nodes=nodes, lab=None)


def unit_of(model: str) -> str:
    return str(read_layouts().get(model, {}).get("unit", "img"))


def record_of(study: Study, point: Point, interval: tuple[float, float] | None = None) -> Record:
    """Return the record of a point.

    `interval` has two factors of the rate; a checked forecast lies between them.
    """
    outlook = point.outlook
    assert outlook is not None
    run, profile = run_of(study, point), study.calibration.profile
    rate, (low, high) = outlook.rate, interval or (None, None)
    notes = [LIMIT + bottleneck(outlook), *study.assumptions, *point.notes]
    exposed = outlook.exposed
    return Record.model_validate(
        {
            "kind": "forecast",
            "id": uuid.uuid4().hex,
            "text": run.text,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "run": run.model_dump(),
            "same_result": point.same_result,
            "environment": capture(),
            "notes": notes,
            "verdict": "steady",
            "workers": outlook.workers,
            "device": "",
            "unit": unit_of(study.run.model),
            "rate": {
                "total": {
                    "mean": rate,
                    "median": rate,
                    "low": None if low is None else rate * low,
                    "high": None if high is None else rate * high,
                    "confidence": 0.95,
                    "error": 0.0 if high is None else rate * (high - 1),
                    "repeats": [rate],
                },
                "per_worker": [rate / outlook.workers],
            },
            "step": {"median": outlook.step, "p95": outlook.step, "p99": outlook.step, "max": outlook.step},
            "breakdown": {
                "data": 0.0,
                "forward": profile.forward_seconds,
                "backward": profile.backward,
                "exposed": exposed,
                "update": profile.update,
                "other": max(0.0, outlook.step - profile.forward_seconds - profile.backward - profile.update - exposed),
                "step": outlook.step,
            },
            "bytes": {"received_per_step": [outlook.received]},
            "plan": {"chunks": outlook.chunks},
        }
    )

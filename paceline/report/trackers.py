"""Send the scalars of a record to a tracking service. Only --log-to does this; nothing is sent by default."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from typing import Any

from paceline.errors import MissingPackage, UnknownName
from paceline.measure.record.record import Record
from paceline.report.tensorboard import scalars

PROJECT = "paceline"


def check_tracker(name: str) -> None:
    """Raise before the work begins if a service is unknown or its package is not installed."""
    if name not in TRACKERS:
        raise UnknownName("service for --log-to", name, list(TRACKERS))
    if importlib.util.find_spec(name) is None:
        raise MissingPackage(f"--log-to {name}", package=name)


def send(record: Record, name: str) -> None:
    """Send the scalars of a record as one run, with its settings and its command. Secrets are removed before."""
    check_tracker(name)
    TRACKERS[name](importlib.import_module(name), record.without_secrets())


def by_step(record: Record) -> dict[int, dict[str, float]]:
    """Return the scalars of each step, in order; services refuse a step that comes after a later one."""
    steps: dict[int, dict[str, float]] = {}
    for name, step, value in scalars(record):
        steps.setdefault(step, {})[_plain(name)] = value
    return dict(sorted(steps.items()))


def _plain(name: str) -> str:
    return re.sub(r"[^\w ./-]", "_", name)


def _settings(record: Record) -> dict[str, Any]:
    chosen = record.run.model_dump(mode="json", exclude_defaults=True)
    return {**chosen, "command": record.text, "verdict": record.verdict, "contender": record.race.get("label", "")}


def _wandb(wandb: Any, record: Record) -> None:
    run = wandb.init(project=PROJECT, name=record.id, config=_settings(record))
    for step, values in by_step(record).items():
        run.log(values, step=step)
    run.finish()


def _mlflow(mlflow: Any, record: Record) -> None:
    with mlflow.start_run(run_name=record.id):
        mlflow.log_params(_settings(record))
        for step, values in by_step(record).items():
            mlflow.log_metrics(values, step=step)


TRACKERS: dict[str, Callable[[Any, Record], None]] = {"wandb": _wandb, "mlflow": _mlflow}

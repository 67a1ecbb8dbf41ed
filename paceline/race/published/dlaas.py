"""Training as a service: object store, container network, accuracy, and the fields that an experiment keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paceline.measure.record.record import Record
from paceline.race.published._sheet import SMALL, Filled, PublishedFigure, Row, Sheet, has_source, too_many
from paceline.run.run import Run

# Published field -> its place in a record.
FIELDS = {
    "description": "experiment.description",
    "time (UTC)": "time",
    "storage: local disk, NFS or object store with its endpoint": "experiment.storage",
    "workload and pointer to its code": "run.model",
    "cluster": "experiment.cluster",
    "number of servers": "run.nodes",
    "addresses": "experiment.addresses",
    "behind a gateway or not": "experiment.gateway",
    "pointer to machine description (RAM, CPUs, GPUs, NICs)": "environment",
    "results": "rate",
    "expected results": "experiment.expected",
    "store configuration": "experiment.store",
    "input data: bucket, number of objects, size": "experiment.data",
    "summary and next steps": "experiment.summary",
}


# Published column -> its name here. No run here corresponds to the tables that have them.
COLUMNS = {
    "batch_per_gpu": "batch",
    "top1": "top-1",
    "top5": "top-5",
    "expected": "expected img/s",
    "gpu_utilization": "GPU use",
}


def sheets(published: dict[str, Any]) -> list[Sheet]:
    return [_sheet(table) for table in published["table"]]


def _sheet(table: dict[str, Any]) -> Sheet:
    what = table["what"]
    here = "64 x 64 images, batch 16" if "synthetic" in what else ""
    return Sheet(f"ResNet-50: {what}", tuple(_rows(table)), ratio="efficiency", here=here, per_worker=True)


def _rows(table: dict[str, Any]) -> Iterator[Row]:
    first = _name(table, 0)
    for k, (workers, rate) in enumerate(zip(table["workers"], table["rate"], strict=True)):
        run, reason = _answer(table["what"], workers)
        printed = (table.get("efficiency") or [None] * len(table["rate"]))[k]
        figures = tuple(PublishedFigure(name, table[column][k]) for column, name in COLUMNS.items() if column in table)
        yield Row(_name(table, k), rate, printed, run, reason, first, figures)


def _name(table: dict[str, Any], k: int) -> str:
    model = f"{table['model'][k]}, " if "model" in table else ""
    return f"{model}{table['workers'][k]}"


def _answer(what: str, workers: int) -> tuple[Run | None, str]:
    if "accuracy" in what:
        return None, "needs ImageNet and days of a GPU"
    if "object" in what:
        known = has_source("store") or has_source("tfrecord")
        return None, "needs ImageNet in an object store" if known else "this version reads no object store"
    if "container network" in what:
        return None, "needs two networks between hosts"
    if "fp16" in what:
        return None, "needs GPUs"
    reason = too_many(workers)
    return (None, reason) if reason else (Run(workers=workers, strategy="allreduce", **SMALL), "")


def judge(published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
    """Return an empty list: no published conclusion can be checked with figures."""
    return []


def facts(published: dict[str, Any]) -> list[tuple[str, str]]:
    """Return every published field of an experiment with its place in a record."""
    return [(field, _place(FIELDS.get(field, ""))) for field in published["record_fields"]]


def _place(where: str) -> str:
    top = where.partition(".")[0]
    return f"record: {where}" if top in Record.model_fields else "not kept by this version"

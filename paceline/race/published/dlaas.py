"""Training as a service: object store, container network, accuracy, and the fields that an experiment keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from paceline.measure.record.record import Record
from paceline.race.published._sheet import (
    SMALL,
    Filled,
    PublishedFigure,
    Row,
    Sheet,
    box_use,
    mean_of,
    too_many,
)
from paceline.race.results.standing import Standing
from paceline.race.surroundings import STORE, disk
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


STORED = "real data from the object store"
BESIDE = "the same files on disk, and fake(cpu)"

# Published column -> its name here. No run here corresponds to the tables that have them.
COLUMNS = {
    "batch_per_gpu": "batch",
    "top1": "top-1",
    "top5": "top-5",
    "expected": "expected img/s",
    "gpu_utilization": "GPU use",
}


# Published table -> the network of a lab that corresponds to it.
NETWORKS = {
    "synthetic data, host network": ("direct", "none"),
    "synthetic data, container network (Calico)": ("vxlan", "vxlan"),
}
HOSTS, BANDWIDTH, STEP = 4, "500mbit", 1.6  # a ring moves the gradients of resnet50 in 2.6 s
COMPARABLE = (
    "overlay against direct links: both encapsulate packets, so what they add per packet can be compared; Calico also "
    "routes and filters on the processor of each host, links there were 100 times as fast, and compute here is replayed"
)


def sheets(published: dict[str, Any]) -> list[Sheet]:
    return [*(_sheet(table) for table in published["table"]), _networks(published)]


def _networks(published: dict[str, Any]) -> Sheet:
    """Return training in a lab on direct links and on an overlay, beside the published efficiencies of 8 workers."""
    printed = {table["what"]: table["efficiency"][-1] for table in published["table"] if table["what"] in NETWORKS}
    figures = (
        PublishedFigure("MB/s", None, mean_of(_goodput)),
        PublishedFigure("latency ms", None, mean_of(_latency)),
        PublishedFigure("cores busy", None, mean_of(box_use)),
    )
    rows = []
    for what, (name, overlay) in NETWORKS.items():
        lab = f"lab(hosts={HOSTS}, bandwidth={BANDWIDTH}{f', overlay={overlay}' if overlay != 'none' else ''})"
        work = {"model": "resnet50", "batch_size": 128, "compute": f"replay(resnet50, step={STEP:g})", "lab": lab}
        length = {"workers": HOSTS, "steps": 2, "repeats": 1, "warmup": 2}
        runs = {s: Run.model_validate({**work, **length, "strategy": s}) for s in ("limit", "mg_wfbp")}
        rows.append(Row(f"limit, {name}", run=runs["limit"], base=f"limit, {name}", figures=figures))
        rows.append(Row(name, None, printed[what], runs["mg_wfbp"], base=f"limit, {name}", figures=figures))
    title = "container network (vxlan) against host network (direct links): all-reduce"
    here = f"{HOSTS} hosts at {BANDWIDTH}, replayed steps of {STEP:g} s; latency of an all-reduce"
    return Sheet(title, tuple(rows), ratio="of limit", here=here, together=True)


def _goodput(record: Record) -> float | None:
    """Return the TCP rate of the slowest link in MB/s, all hosts sending."""
    rates = record.network.get("goodput")
    return min(rates) / 1e6 if rates else None


def _latency(record: Record) -> float | None:
    """Return milliseconds of the smallest all-reduce, as the schedule measured it."""
    link = record.network.get("measured")
    return link["latency"] * 1e3 if link else None


def _sheet(table: dict[str, Any]) -> Sheet:
    what = table["what"]
    here = "64 x 64 images, batch 16" if "synthetic" in what else ""
    if what == STORED:
        here = f"JPEG images of 128 x 128, cut to 64 x 64, batch 16; S3 server on loopback; rows beside it: {BESIDE}"
    return Sheet(f"ResNet-50: {what}", tuple(_rows(table)), ratio="efficiency", here=here, per_worker=True)


def _rows(table: dict[str, Any]) -> Iterator[Row]:
    first = _name(table, 0)
    stall = (PublishedFigure("stall", None, _stall),) if table["what"] == STORED else ()
    for k, (workers, rate) in enumerate(zip(table["workers"], table["rate"], strict=True)):
        run, reason = _answer(table["what"], workers)
        printed = (table.get("efficiency") or [None] * len(table["rate"]))[k]
        figures = tuple(PublishedFigure(name, table[column][k]) for column, name in COLUMNS.items() if column in table)
        yield Row(_name(table, k), rate, printed, run, reason, first, (*figures, *stall))
    if table["what"] == STORED:
        for place, source in (("disk", disk()), ("fake", "fake(cpu)")):
            for workers in (1, 2, 4):
                run, reason = _loaded(workers, source)
                yield Row(f"{place}, {workers}", None, None, run, reason, f"{place}, 1", stall)


def _stall(standing: Standing) -> str | None:
    """Return the share of a step that waits for data, over all starts."""
    shares = [r.breakdown["data"] / r.breakdown["step"] for r in standing.records if r.breakdown.get("step")]
    return f"{fmean(shares):.1%}" if shares else None


def _loaded(workers: int, source: str) -> tuple[Run | None, str]:
    reason = too_many(workers)
    work = SMALL if source.startswith("fake") else {**SMALL, "image_size": None}  # shards know the size of images
    return (None, reason) if reason else (Run(workers=workers, strategy="allreduce", source=source, **work), "")


def _name(table: dict[str, Any], k: int) -> str:
    model = f"{table['model'][k]}, " if "model" in table else ""
    return f"{model}{table['workers'][k]}"


def _answer(what: str, workers: int) -> tuple[Run | None, str]:
    if "accuracy" in what:
        return None, "needs ImageNet and days of a GPU"
    if what == STORED:
        return _loaded(workers, STORE)
    if "object" in what:
        return None, "the first try of the table above, with an older version"
    if "container network" in what:
        return None, "see the table of networks in a lab"
    if "fp16" in what:
        return None, "needs GPUs"
    reason = too_many(workers)
    return (None, reason) if reason else (Run(workers=workers, strategy="allreduce", **SMALL), "")


def judge(published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
    """Return an empty list: no published conclusion can be checked with figures."""
    return []


def facts(published: dict[str, Any]) -> list[tuple[str, str]]:
    """Return every published field of an experiment with its place in a record, and which networks can be compared."""
    return [("networks", COMPARABLE), *((field, _place(FIELDS.get(field, ""))) for field in published["record_fields"])]


def _place(where: str) -> str:
    top = where.partition(".")[0]
    return f"record: {where}" if top in Record.model_fields else "not kept by this version"

"""BlueFog: averaging with neighbors against ring all-reduce, as rates per strategy.

The published gain needs many machines with a network that is slow beside their compute. A lab has such a network, and
replayed compute leaves the cores to it: its sheets show the rate of the same strategies as a share of the limit's, for
several step times. In the middle one, a ring all-reduce gets about the published 66 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
from paceline.run.run import Run

STRATEGIES = {
    "allreduce": "horovod",
    "neighbor": "neighbor_allreduce",
    "hierarchical_neighbor": "hierarchical_neighbor_allreduce",
}
SIZE = {"image_size": 32, "batch_size": 32}
NAMES = {"allreduce": "allreduce", "neighbor": "neighbor", "hierarchical_neighbor": "hierarchical"}
LAB = "lab(hosts=8, bandwidth=500mbit)"
WORKERS = 8
STEPS = (1.2, 1.8, 2.7)  # seconds of a step; a ring moves the gradients of resnet50 in 3.0 s
LIKE_PUBLISHED = 2.7
IN_THE_LAB = {
    "limit": "limit",
    "allreduce": "allreduce",
    "ddp": "ddp",
    "neighbor": "neighbor_allreduce",
    "hierarchical": "hierarchical_neighbor_allreduce",
}
# Short starts, because five strategies take turns in each; the published program has this optimizer.
LENGTH = {"steps": 2, "repeats": 1, "warmup": 2, "batch_size": 64, "optimizer": "sgd(lr=0.01)"}


def sheets(published: dict[str, Any]) -> list[Sheet]:
    boxes = [_in_the_lab(published, step) for step in STEPS]
    return [*(_chart(chart) for chart in published["chart"]), *boxes, _here()]


def _chart(chart: dict[str, Any]) -> Sheet:
    rows = [*(row for column in STRATEGIES for row in _rows(chart, column)), *_ideal(chart)]
    title = f"ResNet-50, batch {chart['batch']} per GPU, read off a chart; ratio to all-reduce"
    return Sheet(title, tuple(rows), ratio="ratio")


def _rows(chart: dict[str, Any], column: str) -> Iterator[Row]:
    for workers, rate, against in zip(chart["workers"], chart[column], chart["allreduce"], strict=True):
        reason = too_many(workers) or "needs GPUs"
        yield Row(f"{NAMES[column]}, {workers}", rate, rate / against, None, reason, base=f"allreduce, {workers}")


def _ideal(chart: dict[str, Any]) -> Iterator[Row]:
    """Yield the end of the ideal line, if the chart has one."""
    if "ideal_128" in chart:
        rate, against = chart["ideal_128"], dict(zip(chart["workers"], chart["allreduce"], strict=True))[128]
        yield Row("ideal, 128", rate, rate / against, None, "a line in the chart, not a run")


def _in_the_lab(published: dict[str, Any], step: float) -> Sheet:
    """Return all strategies in a lab, as shares of the limit's rate. One step time has published shares beside it."""
    best = published["headline"] if step == LIKE_PUBLISHED else {}
    parts = {"allreduce": best.get("allreduce_efficiency"), "neighbor": best.get("neighbor_efficiency")}
    used = (PublishedFigure("cores busy", None, mean_of(box_use)),)
    rows = []
    for name, strategy in IN_THE_LAB.items():
        compute = f"replay(resnet50, step={step:g})"
        settings = {"workers": WORKERS, "strategy": strategy, "model": "resnet50", "compute": compute, "lab": LAB}
        run = Run.model_validate({**settings, **LENGTH})
        rows.append(Row(name, None, parts.get(name), run, base="limit", figures=used))
    title = f"in a box, steps of {step:g} s: part of the limit"
    here = f"resnet50, batch 64, compute replayed on {WORKERS} hosts of {LAB}"
    return Sheet(title, tuple(rows), ratio="of limit", here=here, together=True)


def _here() -> Sheet:
    """Return the same strategies at a size for this machine; the published page reports no gain up to 8 GPUs."""
    rows = []
    for column, strategy in STRATEGIES.items():
        nodes = "2x1" if column.startswith("hierarchical") else None
        run = Run.model_validate({**SMALL, **SIZE, "workers": 2, "strategy": strategy, "nodes": nodes})
        rows.append(Row(f"{NAMES[column]}, 2", None, 1.0, run, base="allreduce, 2"))
    title = 'this machine: "no gain at 8 GPUs or fewer" as a ratio to all-reduce'
    return Sheet(title, tuple(rows), ratio="ratio", here="2 workers, 32 x 32 images, batch 32")


def judge(published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
    """Return an empty list: no published conclusion can be checked with figures."""
    return []


def facts(published: dict[str, Any]) -> list[tuple[str, str]]:
    best = published["headline"]
    efficiencies = f"{best['neighbor_efficiency']:.0%} neighbor, {best['allreduce_efficiency']:.0%} all-reduce"
    return [
        ("headline", f"{best['workers']} GPUs, batch {best['batch']}: {efficiencies}"),
        ("output line", published["output_line"]),
        *(("advice", line) for line in published["advice"]),
    ]

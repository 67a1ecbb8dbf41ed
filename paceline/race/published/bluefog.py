"""BlueFog: averaging with neighbors against ring all-reduce, as rates per strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paceline.race.published._sheet import SMALL, Filled, Row, Sheet, too_many
from paceline.run.run import Run

STRATEGIES = {
    "allreduce": "horovod",
    "neighbor": "neighbor_allreduce",
    "hierarchical_neighbor": "hierarchical_neighbor_allreduce",
}
SIZE = {"image_size": 32, "batch_size": 32}
NAMES = {"allreduce": "allreduce", "neighbor": "neighbor", "hierarchical_neighbor": "hierarchical"}


def sheets(published: dict[str, Any]) -> list[Sheet]:
    return [*(_chart(chart) for chart in published["chart"]), _here()]


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

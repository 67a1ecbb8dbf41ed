"""ddl-benchmarks: seven schedules on three networks; here in this machine's memory, and in a small lab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.race.published._sheet import SMALL, Filled, Row, Sheet
from paceline.run.run import Run

# Published name -> axes. compose decides whether this version has the members.
AXES = {
    "BSP-A2A": {"schedule": "bsp"},
    "WFBP-A2A": {"schedule": "wfbp"},
    "MG-WFBP": {"schedule": "mgwfbp"},
    "ByteScheduler-A2A": {"schedule": "priority"},
    "BSP-PS": {"exchange": "ps", "schedule": "bsp"},
    "WFBP-PS": {"exchange": "ps", "schedule": "wfbp"},
    "ByteScheduler-PS": {"exchange": "ps", "schedule": "priority"},
}
NETWORKS = {"gbe10": "10 GbE", "gbe100": "100 GbE TCP", "ib100": "100 Gbit/s InfiniBand"}
FIRST = "BSP-A2A"
LAB = "lab(hosts=2, bandwidth=1gbit)"


def sheets(published: dict[str, Any]) -> list[Sheet]:
    rates = published["rate_at_32"]
    here = [_sheet(rates["gbe10"], "resnet50", "10 GbE there, the minimal lab here", lab=True)]
    here.append(_sheet(rates["ib100"], "resnet50", "InfiniBand there, shared memory here", lab=False))
    others = [
        _sheet(rates[network], model, f"{NETWORKS[network]}, 32 GPUs", lab=None)
        for network in NETWORKS
        for model in ("resnet50", "bert_base", "bert_large")
        if (network, model) not in (("gbe10", "resnet50"), ("ib100", "resnet50"))
    ]
    return [*here, *others]


def _sheet(rates: dict[str, Any], model: str, place: str, *, lab: bool | None) -> Sheet:
    first = rates[model][0]
    rows = []
    for (name, axes), rate in zip(AXES.items(), rates[model], strict=True):
        run, reason = (None, "needs 32 GPUs") if lab is None else _answer(axes, lab=lab)
        rows.append(Row(name, rate, rate / first, run, reason, base=FIRST))
    here = "" if lab is None else f"2 workers{', 1 Gbit/s links' if lab else ''}, 64 x 64 images, batch 16"
    unit = "img" if model == "resnet50" else "seq"
    return Sheet(f"{model}: {place}", tuple(rows), ratio="of BSP", here=here, unit=unit)


def _answer(axes: dict[str, str], *, lab: bool) -> tuple[Run | None, str]:
    where = {"lab": LAB} if lab else {}
    return Run.model_validate({**SMALL, "workers": 2, **axes, **where}), ""


def judge(published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
    """Return an empty list: no published conclusion can be checked with figures."""
    return []


def facts(published: dict[str, Any]) -> list[tuple[str, str]]:
    models = published["models"].items()
    rates = ", ".join(f"{model} {rate}" for model, rate in published["one_worker_rate"].items())
    sweep = published["sweep"]
    counts = ", ".join(map(str, sweep["workers"]))
    return [
        ("one worker", f"{rates} (typed in, not measured with each run)"),
        *((name, f"{size['parameters']:,} parameters in {size['tensors']} tensors") for name, size in models),
        ("sweep", f"{counts} workers, {sweep['tries']} tries each: {', '.join(sweep['workloads'])}"),
    ]

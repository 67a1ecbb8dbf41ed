"""Forecasts of published tables: one named row of each calibrates the wires, the others are forecast.

    step of one worker   its published rate
    layers               by FLOPs
    wires                bandwidth (and latency, if a place has several calibrating rows), fitted so that forecasts of
                         the calibrating rows match the published rates
    naive                every row gets the efficiency of the calibrating row

Calibrating rows are left out of all errors. Rows that no model of wires explains are listed, not fitted. They are
chosen by published figures alone, and errors are given with and without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log10
from statistics import median
from typing import Any

from paceline.forecast.calibrate import Calibration
from paceline.forecast.certificate import kendall
from paceline.forecast.fabric import Fabric, Line
from paceline.forecast.fit import Values, fit
from paceline.forecast.machines import entry
from paceline.forecast.study import point_of
from paceline.run.run import Run
from paceline.workload.by_flops import of_flops
from paceline.workload.profile import StepProfile

PCIE = entry("device", "RTX2080Ti")["inside"]
MANY = 5  # fewest rows that can be ordered
HALVINGS = 12  # halvings of a range of six powers of ten
SUSPECT = 0.02  # two networks with rates as close as this: one of them was not measured


@dataclass(frozen=True)
class ForecastRow:
    """One published row: its place in the tables, its rate, and the job that represents it in the forecast.

    alone   samples per second of one worker by itself
    wires   makes the fabric from fitted figures
    """

    sheet: str
    row: str
    workers: int
    rate: float
    alone: float
    model: str
    batch: int
    wires: Callable[[Values], Fabric]
    axes: Mapping[str, str] = field(default_factory=dict)
    strategy: str = "horovod"
    calibrates: bool = False
    held: bool = False  # gradients leave after backward only
    share: int = 1  # workers that one rank of the fabric represents
    explained: bool = True  # False for rows that contradict other published rows under any model of wires

    @property
    def efficiency(self) -> float:
        return self.rate / (self.workers * self.alone)

    def forecast(self, values: Values) -> float:
        """Return samples per second."""
        run = Run(model=self.model, batch_size=self.batch, **self.axes)  # type: ignore[arg-type]
        known = Calibration(_profile(self.model, self.batch, self.alone, self.held), "the published rate")
        point = point_of(run, self.strategy, self.wires(values), known)
        return 0.0 if point.outlook is None else point.outlook.rate * self.share


@cache
def _profile(model: str, batch: int, alone: float, held: bool) -> StepProfile:
    profile = of_flops(model, batch / alone, batch)
    late = {"ready": tuple(profile.backward for _ in profile.ready)} if held else {}
    return profile.model_copy(update=late)


@dataclass(frozen=True)
class Forecast:
    """A published row with its forecast, in samples per second."""

    task: ForecastRow
    rate: float
    naive: float

    @property
    def error(self) -> float:
        return abs(self.rate / self.task.rate - 1)

    @property
    def naive_error(self) -> float:
        return abs(self.naive / self.task.rate - 1)


@dataclass(frozen=True)
class Forecasts:
    """All rows of one published system with their forecasts. `unexplained` names the rows that no model explains."""

    rows: tuple[Forecast, ...]
    unexplained: tuple[str, ...] = ()

    def find(self, sheet: str, row: str) -> Forecast | None:
        return next((f for f in self.rows if (f.task.sheet, f.task.row) == (sheet, row)), None)

    @property
    def judged(self) -> list[Forecast]:
        return [row for row in self.rows if not row.task.calibrates]

    def sentences(self) -> list[str]:
        """Return the errors of all rows that did not calibrate, then without the rows that no model explains."""
        rows = self.judged
        explained = [row for row in rows if row.task.explained]
        sentences = [_errors(f"forecast of {len(rows)} rows", rows)] if rows else []
        if explained and len(explained) < len(rows):
            without = f"without the {len(rows) - len(explained)} rows that no model explains"
            sentences.append(_errors(without, explained))
        return sentences


def _errors(what: str, rows: Sequence[Forecast]) -> str:
    errors, naive = [f.error for f in rows], [f.naive_error for f in rows]
    sentence = (
        f"{what}: median error {median(errors):.0%}, worst {max(errors):.0%}; "
        f"naive, as efficient as the calibrating row: {median(naive):.0%}, worst {max(naive):.0%}"
    )
    if len(rows) >= MANY:
        sentence += f"; Kendall's tau {kendall([f.rate for f in rows], [f.task.rate for f in rows]):.2f}"
    return sentence


def forecasts_of(name: str, published: dict[str, Any]) -> Forecasts:
    """Return the forecasts of one published system; empty for a system that is not described here."""
    groups, unexplained = SYSTEMS[name](published)
    return Forecasts(tuple(f for tasks, guess in groups for f in _calibrated(tasks, guess)), tuple(unexplained))


def _calibrated(tasks: Sequence[ForecastRow], guess: Values) -> list[Forecast]:
    """Fit the wires to the calibrating rows of a place, then forecast all of its rows."""
    known = [task for task in tasks if task.calibrates]
    figures = _bandwidth(known[0], guess) if len(known) == len(guess) == 1 else _fitted(known, guess)
    efficiencies = {task.sheet: task.efficiency for task in known}
    usual = median(efficiencies.values())
    return [
        Forecast(
            task,
            task.rate if task.calibrates else task.forecast(figures),
            efficiencies.get(task.sheet, usual) * task.workers * task.alone,
        )
        for task in tasks
    ]


def _fitted(known: Sequence[ForecastRow], guess: Values) -> Values:
    return fit(
        guess, lambda values: [max(1e-9, task.forecast(values)) for task in known], [t.rate for t in known], rounds=40
    )


def _bandwidth(task: ForecastRow, guess: Values) -> Values:
    """Find the bandwidth at which one row has its published rate; rates rise with bandwidth."""
    low, high = (log10(guess["bandwidth"]) + side for side in (-3, 3))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if task.forecast({"bandwidth": 10**middle}) < task.rate:
            low = middle
        else:
            high = middle
    return {"bandwidth": 10 ** ((low + high) / 2)}


Group = tuple[list[ForecastRow], Values]


def _nodes(workers: int, per_node: int, line: Line, inside: Line, **more: Any) -> Fabric:
    return Fabric(nodes=1, ranks=per_node, inside=inside, between=line, **more).resized(workers)


# systems ---------------------------------------------------------------------------------------------


def _dlaas(published: dict[str, Any]) -> tuple[list[Group], list[str]]:
    """Return the rows of machines with two P100 and dual 10 Gbit/s; TCP was tuned, so there is no incast."""
    groups: list[Group] = []
    unexplained = []
    for table in published["table"]:
        what = table["what"]
        if "efficiency" not in table:
            unexplained.append(f"{what}: its rows differ in more than workers")
            continue
        alone = table["rate"][0] if table["workers"][0] == 1 else table["rate"][0] / 4 / table["efficiency"][0]
        axes = {"compressor": "cast(fp16)"} if "fp16" in what else {}
        tasks = [
            ForecastRow(
                f"ResNet-50: {what}",
                str(workers),
                workers,
                rate,
                alone,
                "resnet50",
                128,
                lambda values, n=workers: _nodes(n, 2, Line(30e-6, values["bandwidth"]), Line(5e-6, PCIE)),  # type: ignore[misc]
                axes,
                calibrates=workers == 4,
            )
            for workers, rate in zip(table["workers"], table["rate"], strict=True)
            if workers > 1
        ]
        groups.append((tasks, {"bandwidth": 2.5e9}))
    return groups, unexplained


NAMES = {
    "allreduce": ("allreduce", "horovod"),
    "neighbor": ("neighbor", "neighbor_allreduce"),
    "hierarchical_neighbor": ("hierarchical", "hierarchical_neighbor_allreduce"),
}


def _bluefog(published: dict[str, Any]) -> tuple[list[Group], list[str]]:
    """Return the rows of machines with eight V100 and 25 Gbit/s. One machine is the base of batch 32."""
    groups: list[Group] = []
    for chart in published["chart"]:
        ideal, batch = chart.get("ideal_128"), chart["batch"]
        alone = ideal / 128 if ideal else chart["allreduce"][chart["workers"].index(8)] / 8
        first = min(workers for workers in chart["workers"] if workers > 8)
        title = f"ResNet-50, batch {batch} per GPU, read off a chart; ratio to all-reduce"
        tasks = [
            ForecastRow(
                title,
                f"{name}, {workers}",
                workers,
                rate,
                alone,
                "resnet50",
                batch,
                lambda values, n=workers: _nodes(  # type: ignore[misc]
                    n, 8, Line(25e-6, values["bandwidth"]), Line(5e-6, 150e9), call=10e-6
                ),
                strategy=strategy,
                calibrates=column == "allreduce" and workers == first,
                explained=batch != 32 or column == "neighbor",
            )
            for column, (name, strategy) in NAMES.items()
            for workers, rate in zip(chart["workers"], chart[column], strict=True)
            if workers > 8
        ]
        groups.append((tasks, {"bandwidth": 1e9}))
    return groups, [
        "8 GPUs of the chart of batch 32: they are the base of its other rows",
        "all-reduce of batch 32 from 32 workers on: it falls faster than rings on ports of one bandwidth can",
        "hierarchical of batch 32: 73 % at every size, although its exchange would hide behind the step",
    ]


MODELS = {
    "resnet50": "resnet50(bias=true, classes=10)",
    "mobilenet_v2": "mobilenet_v2(classes=10)",
    "image_compression": "image_compression",
}


def _elasticdl(published: dict[str, Any]) -> tuple[list[Group], list[str]]:
    """Return rows with one all-reduce per tensor after backward; the models of a place share its wires."""
    places: dict[str, list[ForecastRow]] = {}
    for table in published["table"]:
        place, model = table["place"], table["model"]
        title = (
            f"laptop cluster, cpu=0.3 per worker: {model}, cifar10"
            if place == "minikube"
            else f"{place}, {table['worker'].partition(', mem')[0]}: {model}"
        )
        for k, (workers, rate) in enumerate(zip(table["workers"], table["rate"], strict=True)):
            if workers > 1:
                wires = lambda values, n=workers: _nodes(  # noqa: E731
                    n, 1, Line(values["latency"], values["bandwidth"]), Line(0.0, 1e12), scatter="ring"
                )
                name = f"{workers} workers"
                task = ForecastRow(
                    title, name, workers, rate, table["rate"][0], MODELS[model], 64, wires, strategy="wfbp"
                )
                task = replace(task, calibrates=workers == 2, held=True, explained=k < 2 or rate > table["rate"][k - 1])
                places.setdefault(place, []).append(task)
    unexplained = ["mobilenet_v2 on the CPU cluster, 8 workers: slower than 4, which no ring does"]
    return [(tasks, {"bandwidth": 1.2e8, "latency": 1e-4}) for tasks in places.values()], unexplained


def _tensorpack(published: dict[str, Any]) -> tuple[list[Group], list[str]]:
    """Return the rows of one machine with eight P100."""
    groups: list[Group] = []
    unexplained = ["2019-05, the ladder: its rows have 8 GPUs each and differ in precision, batch and compiler"]
    for table in published["table"]:
        if table["date"] != "2017-09":
            continue
        update = table["variable_update"]
        title = f"{table['hardware']}, {table['date']}: variable update {update}"
        columns = {"gpu": "tensorpack_gpu", "cpu": "tensorpack_cpu", "python": "tensorpack_python"}
        for name, column in {**columns, "tf_cnn": "tf_cnn_benchmarks"}.items():
            rates = table[column]
            tasks = [
                ForecastRow(
                    title,
                    f"{name}, {workers}",
                    workers,
                    rate,
                    rates[0],
                    "resnet50",
                    64,
                    lambda values, n=workers: _nodes(n, 8, Line(1e-5, 1e9), Line(5e-6, values["bandwidth"])),  # type: ignore[misc]
                    strategy="bsp",
                    calibrates=workers == 2,
                )
                for workers, rate in zip(table["workers"], rates, strict=True)
                if workers > 1
            ]
            groups.append((tasks, {"bandwidth": 1e10}))
    return groups, unexplained


SCHEDULES: dict[str, dict[str, str]] = {
    "BSP-A2A": {"schedule": "bsp"},
    "WFBP-A2A": {"schedule": "wfbp"},
    "MG-WFBP": {"schedule": "mgwfbp"},
    "ByteScheduler-A2A": {"schedule": "priority"},
    "BSP-PS": {"exchange": "ps(servers=8, colocated=false)", "schedule": "bsp"},
    "WFBP-PS": {"exchange": "ps(servers=8, colocated=false)", "schedule": "wfbp"},
    "ByteScheduler-PS": {"exchange": "ps(servers=8, colocated=false)", "schedule": "wfbp"},
}
NETWORKS = {
    "gbe10": ("10GbE", "10 GbE"),
    "gbe100": ("100GbE", "100 GbE TCP"),
    "ib100": ("InfiniBand", "100 Gbit/s InfiniBand"),
}
TITLES = {
    ("gbe10", "resnet50"): "resnet50: 10 GbE there, the minimal lab here",
    ("ib100", "resnet50"): "resnet50: InfiniBand there, shared memory here",
}
BATCHES = {"resnet50": 64, "bert_base": 64, "bert_large": 8}


def _ddl_benchmarks(published: dict[str, Any]) -> tuple[list[Group], list[str]]:
    """Return the rows of eight machines with four GPUs. A machine sums over its GPUs before it pushes, as one rank."""
    groups: list[Group] = []
    for network, (kind, spelled) in NETWORKS.items():
        wire = entry("network", kind)
        for model, batch in BATCHES.items():
            title = TITLES.get((network, model), f"{model}: {spelled}, 32 GPUs")
            alone = published["one_worker_rate"][model]
            rates = dict(zip(SCHEDULES, published["rate_at_32"][network][model], strict=True))
            slower = dict(zip(SCHEDULES, published["rate_at_32"]["gbe10"][model], strict=True))
            tasks = []
            for row, axes in SCHEDULES.items():
                served = "exchange" in axes

                def wires(values: Values, served: bool = served, wire: dict[str, Any] = wire) -> Fabric:
                    line = Line(wire["latency"], values["bandwidth"])
                    inside = Line(5e-6, min(PCIE, values["bandwidth"] * 4))
                    return Fabric(8, 1 if served else 4, inside=inside, between=line, call=10e-6)

                share = 4 if served else 1
                suspect = served and network == "gbe100" and abs(rates[row] / slower[row] - 1) < SUSPECT
                suspect |= (model, row) == ("resnet50", "ByteScheduler-A2A")
                task = ForecastRow(title, row, 32, rates[row], alone, model, batch, wires, axes, "allreduce")
                tasks.append(replace(task, calibrates=row == "WFBP-A2A", share=share, explained=not suspect))
            groups.append((tasks, {"bandwidth": wire["bandwidth"] * 0.5}))
    return groups, [
        "parameter servers on 100 GbE that are as slow as on 10 GbE: the published figures contradict themselves",
        "ByteScheduler-A2A of resnet50 below BSP-A2A on every network: priority cannot cost that in any model of wires",
        "bert_large inside one machine: its box, not the network, is its limit",
    ]


SYSTEMS: dict[str, Callable[[dict[str, Any]], tuple[list[Group], list[str]]]] = {
    "bluefog": _bluefog,
    "ddl_benchmarks": _ddl_benchmarks,
    "dlaas": _dlaas,
    "elasticdl": _elasticdl,
    "tensorpack": _tensorpack,
}

"""ElasticDL: all-reduce in an elastic job. Its laptop table is measured here with the same share of a core.

Its benchmark never killed a worker. Each laptop table has a second one here, which was not published: the same model
with three workers in an elastic job, undisturbed, and with one worker killed on the way and another one joining.

The table of its CPU cluster is filled from records of `paceline race --suite elasticdl`, on this machine's cores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from paceline.measure.communication import TASK_BATCHES, ratio
from paceline.measure.stats.intervals import ENOUGH, Interval, mean_interval
from paceline.race.cells import Heat
from paceline.race.plan import base
from paceline.race.published._sheet import LEVEL, Filled, PublishedFigure, Row, Sheet, SheetCell, cores
from paceline.race.results.standing import Standing, mean_parts
from paceline.race.suite import read_suite
from paceline.run.run import Run

SHARE = 0.3
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"model": "resnet50(bias=true)", "classes": 10},
    "mobilenet_v2": {"model": "mobilenet_v2", "classes": 10},
    "image_compression": {"model": "image_compression"},
}
WORKERS = (1, 2, 3)  # every model runs here with these, even if not published
SLOW_UPDATE = 0.1  # share of a step; an update reads and writes the model once, which should take less
SUITE = "elasticdl"
CALM, ROUGH = "3 workers", "killed, joined"
COMMON = f"batch 64, random images, tasks of {TASK_BATCHES} batches"
HERE = {
    "minikube": f"32 x 32 images, {COMMON}",
    "elastic": f"32 x 32 images, {COMMON}; membership elastic, global batch 192; rates in committed steps",
    "cpu cluster": f"this machine's cores instead of 4 CPUs for each worker; 32 x 32 images, {COMMON}",
}
Raced = Mapping[tuple[str, int], Run]


def sheets(published: dict[str, Any]) -> list[Sheet]:
    raced = suite_runs()
    tables = [_sheet(table, raced) for table in published["table"]]
    laptop = [k for k, table in enumerate(published["table"]) if table["place"] == "minikube"]
    # The laptop table has no autoencoder, but the conclusions are about all three models, so it runs here, too.
    extra = tuple(_extra("image_compression", WORKERS))
    tables.insert(laptop[-1] + 1, Sheet(_title("image_compression"), extra, here=HERE["minikube"]))
    return tables + [_elastic_sheet(model) for model in MODELS]


def _elastic_sheet(model: str) -> Sheet:
    """Return the table of a model while workers die and join. Its ratio compares with the undisturbed job."""
    rows = [
        Row(name, run=elastic_run(model, disturbed=disturbed), base=CALM, figures=tuple(_figures({}, 0, ELASTIC)))
        for name, disturbed in ((CALM, False), (ROUGH, True))
    ]
    return Sheet(_elastic_title(model), tuple(rows), ratio="of calm", here=HERE["elastic"], unit="step")


def _elastic_title(model: str) -> str:
    return f"laptop cluster, cpu=0.3 per worker: {model}, cifar10, workers come and go"


def elastic_run(model: str, *, disturbed: bool) -> Run:
    """Return the run of three elastic workers. With `disturbed` (min < workers), one of them is killed on the way."""
    run, _ = run_of(model, max(WORKERS))
    assert run is not None
    lengths = {"steps": 5, "repeats": 6, "warmup": 0}
    return run.with_(membership=f"elastic(min={2 if disturbed else 3}, max=3)", restart="1", strategy=None, **lengths)


def _title(model: str) -> str:
    return f"laptop cluster, cpu=0.3 per worker: {model}, cifar10"


def _sheet(table: dict[str, Any], raced: Raced) -> Sheet:
    model, place = table["model"], table["place"]
    title = _title(model) if place == "minikube" else f"{place}, {table['worker'].partition(', mem')[0]}: {model}"
    rows = list(_rows(table, raced))
    if place == "minikube":
        rows += _extra(model, [workers for workers in WORKERS if workers not in table["workers"]])
    return Sheet(title, tuple(rows), here=HERE.get(place, ""))


def _rows(table: dict[str, Any], raced: Raced) -> Iterator[Row]:
    rates, place = table["rate"], table["place"]
    speedups = table.get("speedup") or [rate / rates[0] for rate in rates]
    for k, workers in enumerate(table["workers"]):
        run, reason = _answer(place, table["model"], workers, raced)
        figures, runnable = tuple(_figures(table, k)), place == "minikube"
        yield Row(_name(workers), rates[k], float(speedups[k]), run, reason, _name(1), figures, runnable)


def _name(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"


def _answer(place: str, model: str, workers: int, raced: Raced) -> tuple[Run | None, str]:
    if place == "gpu cluster":
        return None, "needs GPUs"
    if place == "minikube":
        return run_of(model, workers)
    if run := raced.get((model, workers)):
        return run, f"no record of paceline race --suite {SUITE}; --measure leaves it to that"
    return None, f"a worker had 4 CPUs, and the suite {SUITE} has at most {max(count for _, count in raced)} workers"


def run_of(model: str, workers: int) -> tuple[Run | None, str]:
    """Return the run of the laptop table: real compute, a share of a core for each worker."""
    lengths = {"steps": 3, "repeats": 2, "warmup": 2}  # a step takes seconds with a third of a core
    common = {"image_size": 32, "batch_size": 64, "strategy": "allreduce", "threads": 1}
    return Run.model_validate({"workers": workers, **common, **lengths, **MODELS[model], "cpus": SHARE}), ""


def suite_runs() -> dict[tuple[str, int], Run]:
    """Return the runs of strategy allreduce in a race of the suite, by model and number of workers."""
    suite = read_suite(SUITE)
    threads = suite.common.get("threads") or max(1, cores() // max(suite.workers))
    heats = [Heat(model, workers, suite.batch_sizes[0]) for model in suite.models for workers in suite.workers]
    runs = [base(suite, heat, threads).with_(strategy="allreduce") for heat in heats]
    return {(run.model.partition("(")[0], run.workers): run for run in runs}


def _extra(model: str, counts: Sequence[int]) -> Iterator[Row]:
    """Yield rows that were not published."""
    for workers in counts:
        run, reason = run_of(model, workers)
        yield Row(_name(workers), None, None, run, reason, base=_name(1), figures=tuple(_figures({}, 0)))


# the other columns ----------------------------------------------------------------------------------


def _figures(table: dict[str, Any], k: int, columns: Columns | None = None) -> Iterator[PublishedFigure]:
    """Yield the figures of row k of a table; a figure that was not published comes from records alone."""
    for column, (name, ours) in (COLUMNS if columns is None else columns).items():
        yield PublishedFigure(name, _printed(table[column][k]) if column in table else None, ours)


def _printed(value: float | str) -> float | str | None:
    return None if value == "-" else value


def _compute_to_communication(standing: Standing) -> str | None:
    parts, has_ratio = mean_parts(standing), any(record.communication.get("ratio") for record in standing.records)
    return ratio(parts) if parts and has_ratio else None


def _mean(standing: Standing, part: str, name: str) -> float | None:
    """Return the mean over fresh starts of one entry of the record."""
    values = [getattr(record, part).get(name) for record in standing.records]
    known = [float(value) for value in values if value is not None]
    return fmean(known) if known else None


def _next_commit(standing: Standing) -> float | None:
    """Return the mean seconds from the death of a worker to the next commit."""
    dead = [line for record in standing.records for line in record.incidents if line["what"] in ("died", "cut off")]
    seconds = [float(line["seconds"]) for line in dead if "seconds" in line]
    return fmean(seconds) if seconds else None


# Published column -> its name here, and its place in a record.
Columns = dict[str, tuple[str, Callable[[Standing], float | str | None]]]
COLUMNS: Columns = {
    "compute_to_communication": ("comp:comm", _compute_to_communication),
    "communication": ("comm/step", partial(_mean, part="communication", name="share")),
    "task_seconds": ("task s", partial(_mean, part="task", name="task")),
    "allreduce_seconds": ("allreduce s", partial(_mean, part="task", name="allreduce")),
    "tensor_numpy_seconds": ("numpy s", partial(_mean, part="task", name="pack")),
    "apply_gradients_seconds": ("apply s", partial(_mean, part="task", name="update")),
}
# An elastic job does not measure the ratio of compute to communication.
ELASTIC: Columns = {
    **{column: COLUMNS[column] for column in COLUMNS if column.endswith("_seconds")},
    "next_commit": ("commit s", _next_commit),
    "lost": ("lost", partial(_mean, part="elastic", name="lost")),
    "repeated": ("repeated", partial(_mean, part="elastic", name="repeated")),
}


# conclusions ----------------------------------------------------------------------------------------


def judge(published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
    """Judge each published conclusion as true or false here, with the figures that decide it."""
    laptop = {model: next(s for s in filled if s.sheet.title == _title(model)) for model in MODELS}
    pairs = {model: sheet.find(_name(2)) for model, sheet in laptop.items()}
    alone = {model: sheet.find(_name(1)) for model, sheet in laptop.items()}
    weights, compute, update = published["conclusions"]["said"]
    sizes = {model: Interval(_parameters(published, model), None, None) for model in MODELS}
    seconds = {model: _seconds(cell) for model, cell in alone.items()}
    return [
        f'"{weights}": {ordered(pairs, sizes, "parameters", rising=False)}',
        f'"{compute}": {ordered(pairs, seconds, "s per step", rising=True)}',
        f'"{update}": {_update(alone)}',
    ]


def _parameters(published: dict[str, Any], model: str) -> float:
    models = published["models"]
    entry = models.get(f"{model}_cifar10") or models[model]
    return float(entry["parameters"])


def _parts(cell: SheetCell | None) -> list[dict[str, float]]:
    """Return the breakdown of a step, once for each start of the processes."""
    records = cell.standing.records if cell is not None and cell.standing is not None else ()
    return [record.breakdown for record in records if record.breakdown.get("step")]


def _seconds(cell: SheetCell | None) -> Interval | None:
    """Return the compute seconds of a step on one worker."""
    compute = [parts.get("forward", 0.0) + parts.get("backward", 0.0) for parts in _parts(cell)]
    return mean_interval(compute) if compute else None


def ordered(
    cells: Mapping[str, SheetCell | None], by: Mapping[str, Interval | None], what: str, *, rising: bool
) -> str:
    """Judge whether speed-ups on two workers are in the claimed order, each above the previous one.

    A claim fails if a rise by LEVEL can be ruled out. Fewer than ENOUGH starts decide nothing.
    """
    known = [(value, m, cell.ratio) for m, cell in cells.items() if cell and cell.ratio and (value := by[m])]
    if len(known) < len(cells):
        return "not judged: cells are empty"
    known.sort(key=lambda entry: entry[0].centre, reverse=not rising)
    listed = ", ".join(f"{model} {value.centre:.3g} {what} {ratio.centre:.2f}x" for value, model, ratio in known)
    if any(cell.repeats < ENOUGH for cell in cells.values() if cell):
        return f"not decided: too few fresh starts, {ENOUGH} are needed ({listed})"
    if any(abs(change) <= error for change, error in _changes(value for value, _, _ in known)):
        return f"not decided: {what} cannot be told apart ({listed})"
    changes = list(_changes(ratio for _, _, ratio in known))
    if all(change > error for change, error in changes):
        return f"true here ({listed})"
    if any(change + error < math.log1p(LEVEL) for change, error in changes):
        return f"false here ({listed})"
    return f"not decided: the difference may be chance, and --measure --starts N adds starts ({listed})"


def _changes(figures: Iterable[Interval]) -> Iterator[tuple[float, float]]:
    """Yield the log-ratio of each figure to the previous one, with its error."""
    for a, b in pairwise(figures):
        yield math.log(b.centre / a.centre), math.hypot(_error(a), _error(b))


def _error(side: Interval) -> float:
    """Return half the interval on a logarithmic scale; 0 for a figure without an interval."""
    if side.low is None or side.high is None:
        return 0.0
    return (math.log(side.high) - math.log(side.low)) / 2 if side.low > 0 else math.inf


def _update(alone: dict[str, SheetCell | None]) -> str:
    shares = {
        model: fmean(parts.get("update", 0.0) / parts["step"] for parts in timed)
        for model, cell in alone.items()
        if (timed := _parts(cell))
    }
    if not shares:
        return "not judged: cells are empty"
    listed = ", ".join(f"{model} {100 * part:.1f} %" for model, part in shares.items())
    if any(cell.repeats < ENOUGH for model, cell in alone.items() if cell and model in shares):
        return f"not decided: too few fresh starts, {ENOUGH} are needed (update takes {listed} of a step)"
    verdict = "true" if max(shares.values()) > SLOW_UPDATE else "false"
    return f"{verdict} here (update takes {listed} of a step)"


def facts(published: dict[str, Any]) -> list[tuple[str, str]]:
    task = published["task"]
    places = [
        f"{task[f'batches_per_task_{place}']} batches ({task[f'images_per_task_{place}']} images) on {place.upper()}s"
        for place in ("cpu", "gpu")
    ]
    models = published["models"].items()
    return [
        ("a task", f"{' or '.join(places)}, batch {task['batch']}"),
        *((name, f"{size['parameters']:,} parameters in {size['tensors']} tensors") for name, size in models),
        ("commit s", "seconds from the death of the worker to the next commit of the others"),
        ("lost, repeated", "samples that no committed step has used, or more than one, by the ledger of all members"),
        ("numpy s here", "the time in which gradients are copied into the buffer that is sent"),
    ]

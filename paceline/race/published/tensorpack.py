"""Tensorpack: variable update x place of the data, and a ladder of settings, as ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from paceline.measure.stats.intervals import ENOUGH, Interval
from paceline.race.published._sheet import LEVEL, SMALL, Filled, Row, Sheet, SheetCell, has_source, too_many
from paceline.race.surroundings import DATASET, ZMQ
from paceline.run.run import Run
from paceline.run.strategies import STRATEGIES

# Published place of the data -> the word of the source here, and its settings.
PLACES = {
    "gpu": ("fake", "fake(device)"),
    "cpu": ("fake", "fake(cpu)"),
    "python": ("queue", f"queue({DATASET})"),
    "python-dataset": ("dataset", DATASET),
    "zmq-consume": ("zmq", ZMQ),
}
OUTSIDE = ("python", "python-dataset", "zmq-consume")  # made by other programs than the runtime
CLAIM = "zmq-consume was reported as the fastest way in for data made outside the framework"
HERE = "64 x 64 images, batch 16: a CPU takes minutes for theirs"
# A CPU without bf16 instructions is many times slower with it, so the ladder uses smaller images.
RUNG = {**SMALL, "image_size": 32, "batch_size": 4, "steps": 3}


def sheets(published: dict[str, Any]) -> list[Sheet]:
    tables = [_sheet(table) for table in published["table"] if table["date"] == "2017-09"]
    [ladder] = [table for table in published["table"] if table["date"] == "2019-05"]
    return [*tables, _ladder(ladder)]


def _sheet(table: dict[str, Any]) -> Sheet:
    update = table["variable_update"]
    rows = [*(row for place in PLACES for row in _rows(table, update, place)), *_of_tf_cnn_benchmarks(table)]
    title = f"{table['hardware']}, {table['date']}: variable update {update}"
    return Sheet(title, tuple(rows), here=HERE)


def _rows(table: dict[str, Any], update: str, place: str) -> Iterator[Row]:
    rates = table.get(f"tensorpack_{place}") or [None] * len(table["workers"])
    for workers, rate in zip(table["workers"], rates, strict=True):
        if rate is None and workers > 2:
            continue
        run, reason = _answer(update, place, workers)
        ratio = None if rate is None else rate / rates[0]
        yield Row(f"{place}, {workers}", rate, ratio, run, reason, base=f"{place}, 1")


def _of_tf_cnn_benchmarks(table: dict[str, Any]) -> Iterator[Row]:
    """Yield the published figures of tf_cnn_benchmarks in the same table."""
    rates, reason = table["tf_cnn_benchmarks"], "tf_cnn_benchmarks is another program, which is not run here"
    for workers, rate in zip(table["workers"], rates, strict=True):
        yield Row(f"tf_cnn, {workers}", rate, rate / rates[0], None, reason, base="tf_cnn, 1")


def _answer(update: str, place: str, workers: int) -> tuple[Run | None, str]:
    word, source = PLACES[place]
    if update not in STRATEGIES:
        return None, f"this version has no strategy {update}"
    if not has_source(word):
        return None, f"this version has no source {word}"
    if reason := too_many(workers):
        return None, reason
    return Run(workers=workers, strategy=update, source=source, **SMALL), ""


def _ladder(table: dict[str, Any]) -> Sheet:
    """Return the ladder as ratios to its first rung: rates of 8 GPUs and of 2 CPU workers are not comparable."""
    first = table["replicated"]
    rungs: dict[str, dict[str, Any]] = {
        "replicated": {},
        "replicated_fp16": {"precision": "bf16"},
        "replicated_fp16_batch128": {"precision": "bf16", "batch_size": 8},
        "replicated_fp16_batch128_xla": {"precision": "bf16", "batch_size": 8, "compile": True},
    }
    names = {
        "replicated": "fp32",
        "replicated_fp16": "reduced precision",
        "replicated_fp16_batch128": "and batch 128",
        "replicated_fp16_batch128_xla": "and compile",
    }
    rows = [
        Row(names[key], table[key], table[key] / first, _rung(changes), "", base="fp32")
        for key, changes in rungs.items()
    ]
    rows.append(Row("horovod", table["horovod"], table["horovod"] / first, _rung({"strategy": "horovod"}), base="fp32"))
    title = f"{table['hardware']}, {table['date']}: the ladder, 8 workers there, 2 here"
    return Sheet(title, tuple(rows), ratio="of fp32", here="32 x 32 images, batch 4, and 8 for 128; bf16 for fp16")


def judge(published: dict[str, Any], filled: Sequence[Filled]) -> list[str]:
    """Judge the claim about zmq in every table and for every number of workers that has records."""
    assert CLAIM in published["notes"]
    return [f'"{CLAIM}": {verdict}' for verdict in _verdicts(filled) or ["not judged: cells are empty"]]


def _verdicts(filled: Sequence[Filled]) -> list[str]:
    out = []
    for sheet in filled:
        for workers in dict.fromkeys(cell.row.run.workers for cell in sheet.cells if cell.row.run):
            cells = [sheet.find(f"{place}, {workers}") for place in OUTSIDE]
            known = [cell for cell in cells if cell is not None and cell.standing is not None]
            if len(known) == len(OUTSIDE):
                out.append(f"{_verdict(*known)}; {sheet.sheet.title}, {workers} worker(s)")
    return out


def _verdict(queue: SheetCell, dataset: SheetCell, zmq: SheetCell) -> str:
    """Judge the claim that zmq is faster than queue and dataset. It is false if a gain is certainly below LEVEL."""
    assert zmq.standing is not None
    ratios = {
        name: zmq.standing.against(cell.standing)
        for name, cell in (("queue", queue), ("dataset", dataset))
        if cell.standing
    }
    listed = ", ".join(f"{_spoken(ratio)} of {name}" for name, ratio in ratios.items())
    if min(len(cell.records) for cell in (queue, dataset, zmq)) < ENOUGH:
        return f"not decided: too few fresh starts, {ENOUGH} are needed (zmq has {listed})"
    if all(ratio.low is not None and ratio.low > 1 for ratio in ratios.values()):
        return f"true here (zmq has {listed})"
    if any(ratio.high is not None and ratio.high < 1 + LEVEL for ratio in ratios.values()):
        return f"false here (zmq has {listed})"
    return f"not decided: the difference may be chance (zmq has {listed})"


def _spoken(ratio: Interval) -> str:
    around = "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    return f"{ratio.centre:.2f}{around}"


def facts(published: dict[str, Any]) -> list[tuple[str, str]]:
    """Return an empty list: the tables have everything."""
    return []


def _rung(changes: dict[str, Any]) -> Run:
    return Run.model_validate({**RUNG, "workers": 2, "strategy": "replicated", **changes})

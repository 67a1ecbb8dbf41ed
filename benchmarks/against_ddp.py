"""Training steps of `allreduce` beside stock DDP and the limit: same model, data, optimizer, in one run.

Two workers with one thread each. All three contenders live in the same processes and take turns step by step,
each round in another order, so that a slow second hits all of them alike. A ratio above 1 means that allreduce
is faster. Intervals are 95 %, over blocks of rounds.

    python benchmarks/against_ddp.py [--only resnet50] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness import hand_in, is_rank, my_task, on_ranks, show, verdict

from paceline.measure.stats.intervals import Interval, mean_interval
from paceline.run.run import Run

CONTENDERS = ("limit", "ddp", "allreduce")
# model, settings, rounds, to reach of the limit
CASES: list[tuple[str, dict[str, Any], int, float]] = [
    ("mobilenet_v2", {"image_size": 32, "batch_size": 64}, 60, 0.95),
    ("resnet50", {"image_size": 32, "batch_size": 16}, 60, 0.90),
    ("resnet50", {"image_size": 32, "batch_size": 64}, 30, 0.95),
    ("vgg16", {"image_size": 32, "batch_size": 64}, 24, 0.95),
    ("bert_base", {"sequence_length": 64, "batch_size": 4}, 30, 0.90),
]
BLOCKS = 10


def as_rank() -> None:
    """Build every contender, then let them take turns."""
    import os

    import torch

    from paceline.comm.connect import connect, position
    from paceline.measure.meter import Meter
    from paceline.run.compose.compose import compose
    from paceline.train.build import training_of

    task = my_task()
    torch.set_num_threads(1)
    where = position(os.environ)
    comms = {"shm": connect(where, "shm"), "gloo": connect(where, "gloo")}
    trainings = {}
    for name in task["contenders"]:
        run = Run(workers=where.size, strategy=name, model=task["model"], **task["settings"])
        trainings[name] = training_of(compose(run), comms["gloo" if name == "ddp" else "shm"])
        trainings[name].steps(3, Meter())
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    names = list(trainings)
    for number in range(task["rounds"]):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            comms["shm"].barrier()
            began = time.perf_counter()
            trainings[name].steps(1, Meter())
            comms["shm"].barrier()
            seconds[name].append(time.perf_counter() - began)
    if where.rank == 0:
        hand_in(seconds)
    for comm in comms.values():
        comm.close()


def ratio(over: list[float], under: list[float]) -> Interval:
    """How many times faster `under` is than `over`: paired rounds, averaged in blocks."""
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    length = max(1, len(logs) // BLOCKS)
    inner = mean_interval([fmean(logs[k : k + length]) for k in range(0, len(logs) - length + 1, length)])
    low, high = (None if side is None else math.exp(side) for side in (inner.low, inner.high))
    return Interval(math.exp(inner.centre), low, high)


def peak_memory(model: str, settings: dict[str, Any], name: str) -> float:
    """The larger worker's peak proportional memory in MB, in processes of its own."""
    from paceline.measure.measure import measure

    run = Run(workers=2, strategy=name, model=model, steps=1, repeats=1, warmup=4, threads=1, **settings)
    record, _ = measure(run, on_line=lambda *_: None)
    return max(record.resources["pss_peak"]) / 1e6


def shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.centre:.3f}"
    return f"{interval.centre:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only models whose name contains this")
    parser.add_argument("--quick", action="store_true", help="few rounds; figures, not evidence")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows, found, of_limit = [], [], []
    for model, settings, rounds, target in CASES:
        if asked.only and asked.only not in model:
            continue
        task = {"model": model, "settings": settings, "rounds": 4 if asked.quick else rounds, "contenders": CONTENDERS}
        seconds = on_ranks(__file__, 2, task)
        against, limit = (ratio(seconds[name], seconds["allreduce"]) for name in ("ddp", "limit"))
        memory = {} if asked.no_memory else {n: peak_memory(model, settings, n) for n in ("ddp", "allreduce")}
        label = f"{model} {settings['batch_size']}"
        rows.append(
            (
                label,
                *(f"{median(seconds[name]) * 1e3:.0f}" for name in CONTENDERS),
                shown(against),
                shown(limit),
                " / ".join(f"{memory[n]:.0f}" for n in memory) or "-",
            )
        )
        show(("model, batch", "limit ms", "ddp ms", "ours ms", "of ddp", "of limit", "MB ddp/ours"), rows[-1:])
        found.append({"case": label, "of_ddp": vars(against), "of_limit": vars(limit), "memory": memory})
        of_limit.append((label, limit.centre, target))
    print()
    show(("model, batch", "limit ms", "ddp ms", "ours ms", "of ddp", "of limit", "MB ddp/ours"), rows)
    print()
    for entry in found:
        target = 1.25 if entry["case"] == "resnet50 16" else 1.0
        print(verdict(f"{entry['case']} of ddp", entry["of_ddp"]["centre"], target))
    for label, value, target in of_limit:
        print(verdict(f"{label} of limit", value, target))
    mean = math.exp(fmean(math.log(entry["of_ddp"]["centre"]) for entry in found))
    print(verdict("geometric mean of ddp", mean, 1.10))
    if asked.json:
        asked.json.write_text(json.dumps({"cases": found, "geometric_mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    as_rank() if is_rank() else main()

"""What measuring and tracing cost: the same steps with nobody looking, with the meter, and with the event log too.

Two workers with one thread each, a network with many tensors (many events) and a step of about 30 ms, or as close as
this machine comes; once with the default strategy and once with a message per tensor, which has the most events. The
three ways take turns step by step in the same processes, each round in another order. A ratio is seconds with over
seconds without: the median within a block of rounds, then a 95 % interval over blocks. Two figures stand beside it
that do not see what else runs on the machine: processor time, and the calls of one step made alone, as a share of 30
ms.

    python benchmarks/overhead.py [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import hand_in, is_rank, my_task, on_ranks, show, verdict

from paceline.measure.stats.intervals import Interval, mean_interval
from paceline.run.run import Run

WAYS = ("nothing", "meter", "meter and events")
MODEL = {"model": "mobilenet_v2", "image_size": 32, "optimizer": "sgd(lr=0)"}
STRATEGIES = ("allreduce", "wfbp")
STEP = 0.030
BLOCKS = 12


class Blind:
    """Stands where the meter stands and never looks at the clock."""

    def start(self) -> None:
        pass

    def lap(self, part: str) -> None:
        pass

    def add(self, part: str, seconds: float) -> None:
        pass

    def stop(self) -> None:
        pass


def as_rank() -> None:
    import os

    import torch

    from paceline.comm.connect import connect
    from paceline.comm.position import position
    from paceline.measure.meter import Meter
    from paceline.run.compose.compose import compose
    from paceline.train.build import training_of

    task = my_task()
    torch.set_num_threads(1)
    where = position(os.environ)
    comm = connect(where, "shm")
    run = Run(workers=where.size, batch_size=task["batch"], strategy=task["strategy"], **MODEL)
    training = training_of(compose(run), comm)
    training.steps(5, Blind())
    wall: dict[str, list[float]] = {way: [] for way in WAYS}
    work: dict[str, list[float]] = {way: [] for way in WAYS}
    events: list[Any] = []
    counted = 0
    for number in range(task["rounds"]):
        for k in range(len(WAYS)):
            way = WAYS[(number + k) % len(WAYS)]
            meter: Any = Blind() if way == "nothing" else Meter()
            training.pace.record_events(events if way == "meter and events" else None)
            comm.barrier()
            began, busy = time.perf_counter(), time.process_time()
            training.steps(1, meter)
            work[way].append(time.process_time() - busy)
            comm.barrier()
            wall[way].append(time.perf_counter() - began)
            counted = max(counted, len(events))
            events.clear()
    if where.rank == 0:
        hand_in({"wall": wall, "work": work, "events": counted})
    comm.close()


def calls_alone(way: str, events: int) -> float:
    """Seconds that the calls of one step take when there is nothing else to do: the best of many."""
    from paceline.engine.engine import Engine
    from paceline.measure.meter import Meter

    engine: Any = Engine.__new__(Engine)
    engine._clock, best = time.perf_counter, math.inf
    for _ in range(300):
        meter, engine.log = Meter(), []
        began = time.perf_counter()
        if way != "nothing":
            meter.start()
            for part in ("data", "forward", "backward"):
                meter.lap(part)
            meter.add("exposed", 0.0)
            meter.add("update", 0.0)
            meter.stop()
        if way == "meter and events":
            for index in range(events):
                engine._note("ready", 0, index)
        best = min(best, time.perf_counter() - began)
    return best


def ratio(over: list[float], under: list[float]) -> Interval:
    """Paired rounds, the median of each block, an interval over blocks."""
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    length = max(1, len(logs) // BLOCKS)
    inner = mean_interval([median(logs[k : k + length]) for k in range(0, len(logs) - length + 1, length)])
    low, high = (None if side is None else math.exp(side) for side in (inner.low, inner.high))
    return Interval(math.exp(inner.centre), low, high)


def shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.centre:.3f}"
    return f"{interval.centre:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def fitting_batch() -> int:
    """The batch whose step comes closest to 30 ms on this machine."""
    task = {"strategy": STRATEGIES[0], "rounds": 3}
    times = {batch: median(on_ranks(__file__, 2, {**task, "batch": batch})["wall"]["nothing"]) for batch in (2, 4)}
    per_sample = max(1e-4, (times[4] - times[2]) / 2)
    return max(2, round(2 + (STEP - times[2]) / per_sample))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds; figures, not evidence")
    parser.add_argument("--rounds", type=int, default=360)
    parser.add_argument("--batch", type=int, help="samples per worker; chosen for a step of 30 ms otherwise")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    batch, rounds = asked.batch or fitting_batch(), 24 if asked.quick else asked.rounds
    results = {}
    for strategy in STRATEGIES:
        task = {"strategy": strategy, "batch": batch, "rounds": rounds}
        results[strategy] = {"task": task, **told(strategy, batch, on_ranks(__file__, 2, task))}
    for strategy, result in results.items():
        for way in WAYS[1:]:
            share = 1 / result["ratios"][way]["wall"]["centre"]
            print(verdict(f"{strategy}: step without {way}, of a step with it", share, 0.99))
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=1) + "\n")


def told(strategy: str, batch: int, found: dict[str, Any]) -> dict[str, Any]:
    """Prints the table of one strategy and returns its figures."""
    rows, ratios = [], {}
    for way in WAYS:
        wall, work = (ratio(found[kind][way], found[kind]["nothing"]) for kind in ("wall", "work"))
        alone = calls_alone(way, found["events"]) / STEP
        ratios[way] = {"wall": vars(wall), "work": vars(work), "alone": alone}
        rows.append((way, f"{median(found['wall'][way]) * 1e3:.1f}", shown(wall), shown(work), f"{100 * alone:.3f} %"))
    print(f"{strategy}, batch {batch}: {found['events']} events in a step")
    show(("looked at by", "ms", "of nothing", "processor time", "alone"), rows)
    print()
    return {"ratios": ratios, "events": found["events"]}


if __name__ == "__main__":
    as_rank() if is_rank() else main()

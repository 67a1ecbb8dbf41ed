"""Turns against isolated starts: how narrow the ratio of allreduce to ddp gets in the same time; whether they agree.

Without --agreement: races of each kind with the same minutes; the median half-width of the 95 % interval over starts.
With it: for each of three workloads both kinds alternate, and (ratio by turns) / (ratio by isolated starts) has an
interval, which should contain 1.

    python benchmarks/race_power.py [--races 10] [--minutes 1.5] [--quick] [--json F]        about 30 minutes
    python benchmarks/race_power.py --agreement [--minutes 15] [--quick] [--json F]          about 45 minutes

With --json the file is written after every race or start, and a second call goes on where the first one ended.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from harness import show, verdict

from paceline.measure.measure import measure
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval, log_interval
from paceline.measure.stats.pairing import log_ratio
from paceline.measure.stats.unpaired import unpaired_ratio
from paceline.measure.together import measure_together
from paceline.measure.turns import TurnsTask
from paceline.run.run import Run

NAMES = ("ddp", "allreduce")
WORKLOADS: list[dict[str, Any]] = [
    {"model": "mobilenet_v2", "image_size": 32, "batch_size": 16},
    {"model": "resnet50", "image_size": 32, "batch_size": 16},
    {"model": "resnet18", "image_size": 32, "batch_size": 16},
]
LONG = 15  # steps of a repeat of isolated starts that are compared with turns: five are too noisy for 5 %


def quiet(*_: Any) -> None:
    """Print nothing of the workers."""


def runs_of(settings: dict[str, Any], steps: int) -> list[Run]:
    common = {"workers": 2, "threads": 1, "warmup": 3, "steps": steps, "repeats": 3}
    return [Run.model_validate({**common, **settings, "strategy": name}) for name in NAMES]


def by_turns(settings: dict[str, Any], number: int) -> float:
    """Return the log ratio of one shared start."""
    task = TurnsTask(runs=tuple(runs_of(settings, 3)), labels=NAMES, seconds=8.0, seed=number)
    ddp, ours = (_repeats(record) for record, _ in measure_together(task, quiet, flops=1, watched=0))
    return log_ratio(ddp, ours)


def _repeats(record: Record) -> list[float]:
    return list(record.rate["total"]["repeats"])


def by_isolated_starts(settings: dict[str, Any], number: int, steps: int = 5) -> float:
    """Return the log ratio of a round: each contender in processes of its own, in alternating order."""
    order = list(zip(NAMES, runs_of(settings, steps), strict=True))
    order = order if number % 2 else order[::-1]
    rates = {name: measure(run, quiet, flops=1, watched=0)[0].rate["total"]["mean"] for name, run in order}
    return math.log(rates["allreduce"] / rates["ddp"])


def within(seconds: float, start: Callable[[int], float]) -> list[float]:
    """Return the log ratios of as many starts as fit into the time, at least three."""
    logs: list[float] = []
    began, longest = time.monotonic(), 0.0
    while len(logs) < 3 or time.monotonic() - began + longest <= seconds:
        before = time.monotonic()
        logs.append(start(len(logs)))
        longest = time.monotonic() - before
    return logs


def half_width(interval: Interval) -> float:
    """Return half of the width on the scale of logarithms, which is relative."""
    assert interval.low is not None
    assert interval.high is not None
    return math.log(interval.high / interval.low) / 2


def power(races: int, seconds: float, kept: Kept) -> dict[str, Any]:
    settings, kinds = WORKLOADS[0], {"turns": by_turns, "isolated": by_isolated_starts}
    widths: dict[str, list[float]] = kept.value.setdefault("half_widths", {name: [] for name in kinds})
    for race in range(races):
        for name, start in kinds.items():
            if len(widths[name]) > race:
                continue
            logs = within(seconds, lambda number, start=start: start(settings, number))  # type: ignore[misc]
            widths[name].append(half_width(log_interval(logs)))
            kept.write()
            show(
                ("race", "kind", "starts", "half-width"),
                [(str(race + 1), name, str(len(logs)), f"{widths[name][-1]:.3f}")],
            )
    ratio = median(widths["isolated"]) / median(widths["turns"])
    print(verdict("half-width of isolated starts over that of turns", ratio, 3.0))
    return {"half_widths": widths, "ratio": ratio}


def agreement(seconds: float, kept: Kept) -> dict[str, Any]:
    for settings in WORKLOADS:
        row = kept.value.setdefault(settings["model"], {"turns": [], "isolated": [], "seconds": 0.0})
        turns, isolated = row["turns"], row["isolated"]
        while min(len(turns), len(isolated)) < 3 or row["seconds"] < seconds:
            began = time.monotonic()
            turns.append(by_turns(settings, len(turns)))
            isolated.append(by_isolated_starts(settings, len(isolated), LONG))
            row["seconds"] += time.monotonic() - began
            kept.write()
        between = unpaired_ratio([math.exp(log) for log in turns], [math.exp(log) for log in isolated])
        row |= {"agreement": vars(between), "fits": between.holds(1.0) and half_width(between) <= 0.05}
        text = f"{between.centre:.3f} [{between.low:.3f}, {between.high:.3f}]"
        cells = (settings["model"], str(len(turns)), text, str(row["fits"]))
        show(("model", "starts", "turns / isolated", "agree"), [cells])
    return kept.value


class Kept:
    """The results so far, in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = path is not None and path.exists()
        self.value: dict[str, Any] = json.loads(path.read_text()) if path is not None and known else {}

    def write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self.value, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agreement", action="store_true")
    parser.add_argument("--races", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="of one race (1.5), or of one workload (15)")
    parser.add_argument("--quick", action="store_true", help="three starts, one race; figures, not evidence")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kept = Kept(options.json)
    if options.agreement:
        minutes = 0.0 if options.quick else options.minutes or 15.0
        if options.quick:
            del WORKLOADS[1:]
        result: Any = agreement(60 * minutes, kept)
    else:
        minutes = 0.0 if options.quick else options.minutes or 1.5
        result = power(1 if options.quick else options.races, 60 * minutes, kept)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

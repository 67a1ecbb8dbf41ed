"""Turns against isolated starts: how narrow the ratio of allreduce to ddp gets in the same time; whether they agree.

Without --agreement: races of each kind with the same minutes; the median half-width of the 95 % interval over starts.
With it: for each of three workloads both kinds alternate, and (ratio by turns) / (ratio by isolated starts) has an
interval, which should contain 1. With --apart the isolated side is measured more closely: each contender has processes
of its own, but both are alive, and one at a time computes (side_by_side.py), so that slow seconds cancel there, too.

    python benchmarks/race_power.py [--races 10] [--minutes 1.5] [--quick] [--json F]        about 30 minutes
    python benchmarks/race_power.py --agreement [--minutes 15] [--quick] [--json F]          about 45 minutes

    python benchmarks/race_power.py --agreement --apart [--minutes 4] [--json F]             about 12 minutes
    python benchmarks/race_power.py --page power.json agreement.json

With --json the file is written after every race or start, and a second call goes on where the first one ended. --page
keeps the results in docs/records/turns, with the name of this machine, and writes them into docs/howto/measure.md.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from harness import show, verdict
from side_by_side import Pairs, Side

from paceline.cli.race import USUAL
from paceline.cluster.environment import capture
from paceline.measure.measure import measure
from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval, log_interval
from paceline.measure.stats.pairing import log_ratio
from paceline.measure.stats.unpaired import unpaired_ratio
from paceline.measure.together import measure_together
from paceline.measure.turns import TurnsTask
from paceline.race.pacing import SHORTEST
from paceline.run.run import Run

NAMES = ("ddp", "allreduce")
WORKLOADS: list[dict[str, Any]] = [
    {"model": "mobilenet_v2", "image_size": 32, "batch_size": 16},
    {"model": "resnet50", "image_size": 32, "batch_size": 16},
    {"model": "resnet18", "image_size": 32, "batch_size": 16},
]
ROOT = Path(__file__).parents[1]
PAGE, RECORD = ROOT / "docs" / "howto" / "measure.md", ROOT / "docs" / "records" / "turns" / "results.json"
BEGIN, END = "by `benchmarks/race_power.py`:\n\n", "## Speed-up against one worker"
POWER_MINUTES = 1.5  # of one race
KINDS = {"isolated": "by isolated starts", "apart": "by processes of their own that alternate"}
CLOSE = 0.05  # the half-width that a comparison of both kinds should reach
LONG = 15  # steps of a repeat of isolated starts that are compared with turns: five are too noisy for 5 %


def quiet(*_: Any) -> None:
    """Print nothing of the workers."""


def runs_of(settings: dict[str, Any], steps: int, warmup: int = 3) -> list[Run]:
    common = {"workers": 2, "threads": 1, "warmup": warmup, "steps": steps, "repeats": 3}
    return [Run.model_validate({**common, **settings, "strategy": name}) for name in NAMES]


def by_turns(settings: dict[str, Any], number: int, steps: int = 3, seconds: float = 8.0) -> float:
    """Return the log ratio of one shared start."""
    task = TurnsTask(runs=tuple(runs_of(settings, steps, steps)), labels=NAMES, seconds=seconds, seed=number)
    ddp, ours = (_repeats(record) for record, _ in measure_together(task, quiet, flops=1, watched=0))
    return log_ratio(ddp, ours)


def _repeats(record: Record) -> list[float]:
    return list(record.rate["total"]["repeats"])


def as_a_race(settings: dict[str, Any], number: int) -> float:
    """Return the log ratio of one shared start as `paceline race` makes it in a few minutes: short, in short blocks."""
    return by_turns(settings, number, USUAL["steps"], SHORTEST)


def by_isolated_starts(settings: dict[str, Any], number: int, steps: int = 5) -> float:
    """Return the log ratio of a round: each contender in processes of its own, in alternating order."""
    order = list(zip(NAMES, runs_of(settings, steps), strict=True))
    order = order if number % 2 else order[::-1]
    rates = {name: measure(run, quiet, flops=1, watched=0)[0].rate["total"]["mean"] for name, run in order}
    return math.log(rates["allreduce"] / rates["ddp"])


APART = """
import json, os, time
import torch
from paceline.cluster.machine import Machine
from paceline.comm.connect import connect
from paceline.comm.position import position
from paceline.engine.device import find
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.train.worker import comm_choice


class Rank:
    def __init__(self, run):
        where = position(os.environ)
        device = find(where.local_rank)
        self.comm = connect(where, comm_choice(run, device), run.deadline, cuda=device.kind == "cuda")
        self.rank = self.comm.rank
        self.training = training_of(compose(run, Machine()), self.comm, device)
        self.training.steps(run.warmup, Meter())

    def steps(self, count):
        self.comm.barrier()
        self.training.steps(1, Meter())
        began = time.perf_counter()
        self.training.steps(count, Meter())
        return (time.perf_counter() - began) / count

    def close(self):
        self.comm.close("")


torch.set_num_threads(1)
rank = Rank(Run.model_validate_json(sys.argv[1]))
take_turns(rank, {"steps": rank.steps})
"""
PAIRS = 12  # turns of each contender in one start


def by_processes_of_their_own(settings: dict[str, Any], number: int) -> float:
    """Return the log ratio of a start of two jobs that are alive together; one at a time computes."""
    runs = runs_of(settings, 3)
    with ExitStack() as stack:
        ddp, ours = (stack.enter_context(Side(ROOT, APART, [run.model_dump_json()])) for run in runs)
        pairs = Pairs(ddp, ours)
        pairs.pair("steps", 3)  # warms up
        rows = [pairs.pair("steps", 3) for _ in range(PAIRS)]
    return log_ratio([mine for _, mine in rows], [theirs for theirs, _ in rows])


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
    settings, kinds = WORKLOADS[0], {"turns": as_a_race, "isolated": by_isolated_starts}
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
    return {"half_widths": widths, "ratio": ratio, "minutes": seconds / 60}


def agreement(seconds: float, kept: Kept, apart: bool) -> dict[str, Any]:
    kind = "apart" if apart else "isolated"
    for settings in WORKLOADS:
        row = kept.value.setdefault(settings["model"], {"turns": [], kind: [], "seconds": 0.0})
        turns, isolated = row["turns"], row[kind]
        while min(len(turns), len(isolated)) < 3 or row["seconds"] < seconds:
            began = time.monotonic()
            turns.append(by_turns(settings, len(turns)))
            number = len(isolated)
            isolated.append(
                by_processes_of_their_own(settings, number) if apart else by_isolated_starts(settings, number, LONG)
            )
            row["seconds"] += time.monotonic() - began
            kept.write()
        between = unpaired_ratio([math.exp(log) for log in turns], [math.exp(log) for log in isolated])
        row |= {"agreement": vars(between), "fits": between.holds(1.0) and half_width(between) <= CLOSE}
        text = f"{between.centre:.3f} [{between.low:.3f}, {between.high:.3f}]"
        cells = (settings["model"], str(len(turns)), text, str(row["fits"]))
        show(("model", "starts", "turns / isolated", "agree"), [cells])
    return kept.value


def page(results: dict[str, Any]) -> list[str]:
    """Return the lines of docs/howto/measure.md: the machine, both kinds side by side, and how narrow they get."""
    machine = results["machine"]
    lines = [f"Two workers on {machine['cores']} cores ({machine['processor']}), torch {machine['torch']}.", ""]
    for kind, words in KINDS.items():
        if agreement := results.get(kind):
            lines += [
                f"| model | allreduce / ddp by turns | {words} | turns / these | starts |",
                "|---|---|---|---|---|",
            ]
            lines += [*(_row(model, row, kind) for model, row in agreement.items()), ""]
            lines += [*_judged(agreement), ""]
    if power := results.get("power"):
        widths = power["half_widths"]
        turns, isolated = (median(widths[kind]) for kind in ("turns", "isolated"))
        lines += [
            f"Median half-width of the interval of the ratio after {power['minutes']:g} minute(s), "
            f"over {min(map(len, widths.values()))} races of each kind: {100 * turns:.1f} % by turns,",
            f"{100 * isolated:.1f} % by isolated starts. Turns are {isolated / turns:.1f} times narrower.",
        ]
    return lines


def _judged(agreement: dict[str, Any]) -> Iterator[str]:
    """Yield what the intervals say: they contain 1, exclude it, or are too wide to tell."""
    ratios = {
        model: Interval(*(row["agreement"][key] for key in ("centre", "low", "high")))
        for model, row in agreement.items()
    }
    different = [model for model, ratio in ratios.items() if not ratio.holds(1.0)]
    wide = [model for model, ratio in ratios.items() if half_width(ratio) > CLOSE]
    if different:
        yield f"Different: {', '.join(different)}."
    else:
        yield "All intervals of the fourth column contain 1."
    if wide:
        yield f"Wider than plus or minus {100 * CLOSE:.0f} %, so not decided: {', '.join(wide)}."


def _row(model: str, row: dict[str, Any], kind: str) -> str:
    between = row["agreement"]
    sides = [_with_interval(log_interval(row[side])) for side in ("turns", kind)]
    both = _with_interval(Interval(between["centre"], between["low"], between["high"]))
    return f"| {model} | {sides[0]} | {sides[1]} | {both} | {len(row['turns'])} |"


def _with_interval(ratio: Interval) -> str:
    return f"{ratio.centre:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def replaced(text: str, lines: list[str]) -> str:
    """Return the text of the page with these lines in its section."""
    head, _, rest = text.partition(BEGIN)
    return head + BEGIN + "\n".join(lines) + "\n\n" + END + rest.partition(END)[2]


def publish(paths: list[Path]) -> None:
    """Keep the results in docs/records and write the page."""
    stack = capture()
    machine = {"cores": stack["cores"], "processor": stack["processor"], "torch": stack["packages"]["torch"]}
    results = {"machine": machine, **{_kind(path): json.loads(path.read_text()) for path in paths}}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(replaced(PAGE.read_text(), page(results)))


def _kind(path: Path) -> str:
    values = json.loads(path.read_text())
    return "power" if "half_widths" in values else next(kind for kind in KINDS if kind in next(iter(values.values())))


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
    parser.add_argument("--apart", action="store_true", help="isolated processes that alternate")
    parser.add_argument("--races", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="of one race (1.5), or of one workload (15)")
    parser.add_argument("--quick", action="store_true", help="three starts, one race; figures, not evidence")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, nargs="+", metavar="FILE", help="write results of --json into the docs")
    options = parser.parse_args()
    if options.page:
        publish(options.page)
        return
    kept = Kept(options.json)
    if options.agreement:
        minutes = 0.0 if options.quick else options.minutes or 15.0
        if options.quick:
            del WORKLOADS[1:]
        result: Any = agreement(60 * minutes, kept, options.apart)
    else:
        minutes = 0.0 if options.quick else options.minutes or POWER_MINUTES
        result = power(1 if options.quick else options.races, 60 * minutes, kept)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What a folder of 1,000 records costs: listing it, beyond listing an empty folder, and making its report.

The records are those of twenty races of five contenders on four models, with a profile in each as runs leave it. With
--old WORKTREE the same commands run with the code of another checkout, in processes that take turns; a ratio is
seconds of that code over seconds of this one, with a 95 % interval over the turns. Seconds are of the processor, user
and system: what else runs on the machine does not count.

    python benchmarks/records.py [--old WORKTREE] [--turns 5] [--json F]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import show, verdict

from paceline.measure.record.record import Record
from paceline.measure.stats.intervals import Interval, mean_interval, ratio_interval
from paceline.run.run import Run

HERE = Path(__file__).parent.parent
CONTENDERS = ("limit", "ddp", "allreduce", "wfbp", "dear")
MODELS = ("mobilenet_v2", "resnet50", "vgg16", "densenet201")
RACES, ROUNDS, WORLDS, TENSORS = 20, 5, (1, 2), 158
MOST_BEYOND, LEAST_RATIO = 0.2, 4.0


def records() -> Iterator[tuple[str, Record]]:
    """The name of a file and what is in it."""
    for race in range(RACES):
        for turn in range(1, ROUNDS + 1):
            for workers in WORLDS:
                for name in CONTENDERS:
                    yield f"race-{race:02}/{name}-{workers}-round{turn}.json", _record(race, turn, workers, name)


def _record(race: int, turn: int, workers: int, name: str) -> Record:
    dice = random.Random(f"{race} {turn} {workers} {name}")
    model = MODELS[race % len(MODELS)]
    run = Run(workers=workers, strategy=name, model=model, batch_size=16, steps=5, repeats=3, threads=1)
    rate = workers * 100 * (1 + CONTENDERS.index(name) / 50) * dice.gauss(1, 0.01)
    step, heat = 16 * workers / rate, f"{model}, {workers} worker(s), batch 16"
    parts = {"data": 0.01, "forward": 0.3, "backward": 0.6, "exposed": 0.05, "update": 0.03, "other": 0.01, "step": 1.0}
    return Record(
        id=f"20261117-{race:02}{turn:02}{workers:02}-{name}",
        text=run.text,
        time=f"2026-11-17T{race:02}:{turn:02}:{CONTENDERS.index(name):02}+00:00",
        run=run,
        race={"name": f"race-{race}", "round": turn, "sitting": f"{race}", "label": name, "heat": heat},
        environment={"paceline": "0.1.0", "processor": "CPU", "cores": 2, "packages": {"torch": "2.13.0"}},
        verdict="steady",
        workers=workers,
        device="cpu",
        unit="img",
        comm="shm",
        rate={"total": _total(rate, dice), "per_worker": [rate / workers] * workers},
        step={"median": step, "p95": step, "p99": step, "max": step, "samples": 30.0},
        series={"warmup": [step] * 5, "seconds": [step * dice.gauss(1, 0.01) for _ in range(15)], "dropped_blocks": 0},
        breakdown={part: share * step for part, share in parts.items()},
        bytes={"sent_per_step": [1.4e7] * workers, "received_per_step": [1.4e7] * workers},
        resources={"pss_peak": [4.8e8] * workers, "rss_peak": [5.7e8] * workers},
        plan={"chunks": 1},
        profile=_profile(dice, model),
        loss=[6.9 - 0.08 * k + 0.02 * dice.random() for k in range(20)],
    )


def _total(rate: float, dice: random.Random) -> dict[str, Any]:
    repeats = [rate * dice.gauss(1, 0.01) for _ in range(3)]
    sides = {"low": rate * 0.98, "high": rate * 1.02, "confidence": 0.95}
    return {"mean": rate, "median": rate, **sides, "error": rate * 0.01, "repeats": repeats, "steps": 15}


def _profile(dice: random.Random, model: str) -> dict[str, Any]:
    layout = [{"name": f"features.{k}.conv.weight", "numel": 1_000 + k} for k in range(TENSORS)]
    times = {name: sorted(dice.random() for _ in layout) for name in ("forward", "ready")}
    return {"schema": 1, "model": model, "layout": layout, **times, "forward_seconds": 1.0, "backward": 2.0}


def fill(folder: Path) -> int:
    found = list(records())
    for name, record in found:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        values = record.model_dump(mode="json", by_alias=True)
        values["run"] = record.run.model_dump(mode="json", exclude_unset=True)  # older code knows fewer settings
        path.write_text(json.dumps(values, indent=1) + "\n")
    return len(found)


def seconds(code: Path, words: list[str], folder: Path) -> float:
    """Processor time of one command with the code of a checkout."""
    environ = {**os.environ, "PYTHONPATH": str(code)}
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "paceline", *words], env=environ, cwd=folder, stdout=subprocess.DEVNULL, check=True
    )
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--old", type=Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    codes = {"new": HERE, **({"old": asked.old.resolve()} if asked.old else {})}
    with tempfile.TemporaryDirectory() as place:
        found = _measured(Path(place), codes, asked.turns)
    _tell(found)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


def _measured(place: Path, codes: dict[str, Path], turns: int) -> dict[str, dict[str, list[float]]]:
    many, empty = place / "many", place / "empty"
    empty.mkdir()
    print(f"{fill(many)} records", flush=True)
    asks: dict[str, Callable[[Path], float]] = {
        "list beyond an empty folder": lambda code: (
            seconds(code, ["list", "--runs", str(many)], place) - seconds(code, ["list", "--runs", str(empty)], place)
        ),
        "report": lambda code: seconds(code, ["report", "--runs", str(many), "--out", "r.html"], place),
    }
    found: dict[str, dict[str, list[float]]] = {what: {name: [] for name in codes} for what in asks}
    for turn in range(turns):
        for what, ask in asks.items():
            for name in list(codes)[:: 1 if turn % 2 else -1]:
                found[what][name].append(ask(codes[name]))
    return found


def _tell(found: dict[str, dict[str, list[float]]]) -> None:
    rows = []
    for what, by_code in found.items():
        positive = "old" in by_code and min(min(times) for times in by_code.values()) > 0  # a difference may not be
        ratio = ratio_interval(by_code["old"], by_code["new"]) if positive else None
        times = [_spoken(mean_interval(by_code[name])) if name in by_code else "-" for name in ("old", "new")]
        rows.append([what, *times, "-" if ratio is None else _spoken(ratio)])
    show(["", "old s", "new s", "old / new"], rows)
    beyond = mean_interval(found["list beyond an empty folder"]["new"]).centre
    print(verdict("0.2 s over what listing takes beyond an empty folder", MOST_BEYOND / max(beyond, 1e-3), 1.0))
    if "old" in found["report"]:
        centre = ratio_interval(found["report"]["old"], found["report"]["new"]).centre
        print(verdict("time of the old report over that of the new one", centre, LEAST_RATIO))


def _spoken(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.centre:.2f}"
    return f"{interval.centre:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


if __name__ == "__main__":
    main()

"""Training steps of `allreduce` beside stock DDP and the limit: same model, data, optimizer, in one race.

Two workers with one thread each. The contenders take turns in the same processes (paceline.race), so that a slow second
hits all of them alike. A ratio above 1 means that allreduce is faster. Intervals are 95 %, over fresh starts.

    python benchmarks/against_ddp.py [--only resnet50] [--starts 5] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness import show, verdict

import paceline
from paceline.measure.measure import measure
from paceline.measure.stats.intervals import Interval
from paceline.run.run import Run

CONTENDERS = ("limit", "ddp", "allreduce")
HEAD = ("model, batch", "limit ms", "ddp ms", "ours ms", "of ddp", "of limit", "MB ddp/ours")
# model, settings, batch size, ratio to the limit that is wanted
CASES: list[tuple[str, dict[str, Any], int, float]] = [
    ("mobilenet_v2", {"image_size": 32}, 64, 0.95),
    ("resnet50", {"image_size": 32}, 16, 0.90),
    ("resnet50", {"image_size": 32}, 64, 0.95),
    ("vgg16", {"image_size": 32}, 64, 0.95),
    ("bert_base", {"sequence_length": 64}, 4, 0.90),
]


def peak_memory(model: str, settings: dict[str, Any], batch: int, name: str) -> float:
    """Return the larger worker's peak proportional memory in MB, in processes of its own."""
    run = Run(
        workers=2, strategy=name, model=model, batch_size=batch, steps=1, repeats=1, warmup=4, threads=1, **settings
    )
    record, _ = measure(run, on_line=lambda *_: None)
    return max(record.resources["pss_peak"]) / 1e6


def milliseconds(result: Any, name: str) -> str:
    steps = [record.step["median"] for record in result.records if record.race.get("label") == name]
    return f"{1e3 * median(steps):.0f}"


def shown(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return f"{interval.centre:.3f}"
    return f"{interval.centre:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only models whose name contains this")
    parser.add_argument("--starts", type=int, default=5, help="fresh starts of each case")
    parser.add_argument("--quick", action="store_true", help="three starts with batch 8; figures, not evidence")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, cases, of_limit = [], [], []
    for model, settings, batch, target in CASES:
        if options.only and options.only not in model:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = paceline.race(
                model=model,
                batch_size=8 if options.quick else batch,
                rounds=3 if options.quick else options.starts,
                settings={**settings, "threads": 1},
                runs=folder,
            )
        against, limit = result.ratio("allreduce", "ddp"), result.ratio("allreduce", "limit")
        assert against is not None, f"{model}: a contender failed"
        assert limit is not None, f"{model}: the limit failed"
        measured = () if options.no_memory else ("ddp", "allreduce")
        memory = {name: peak_memory(model, settings, batch, name) for name in measured}
        label = f"{model} {batch}"
        times = [milliseconds(result, name) for name in CONTENDERS]
        rows.append(
            (label, *times, shown(against), shown(limit), " / ".join(f"{memory[n]:.0f}" for n in memory) or "-")
        )
        show(HEAD, rows[-1:])
        cases.append({"case": label, "of_ddp": vars(against), "of_limit": vars(limit), "memory": memory})
        of_limit.append((label, limit.centre, target))
    print()
    show(HEAD, rows)
    print()
    for case in cases:
        target = 1.25 if case["case"] == "resnet50 16" else 1.0
        print(verdict(f"{case['case']} of ddp", case["of_ddp"]["centre"], target))
    for label, value, target in of_limit:
        print(verdict(f"{label} of limit", value, target))
    mean = math.exp(fmean(math.log(case["of_ddp"]["centre"]) for case in cases))
    print(verdict("geometric mean of ddp", mean, 1.10))
    if options.json:
        options.json.write_text(json.dumps({"cases": cases, "geometric_mean": mean}, indent=1) + "\n")


if __name__ == "__main__":
    main()

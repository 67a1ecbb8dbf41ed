"""What membership elastic costs when nothing fails: the time of a step against membership fixed.

Four workers, 1 M parameters, and a compute of 30 ms per step that waits instead of calculating, so that workers do not
compete for cores. Starts of the memberships take turns. The ratio is the median step with elastic over that with fixed,
with a 95 % interval over pairs of starts.

    python benchmarks/elastic_overhead.py [--pairs 5] [--steps 200] [--only elastic] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import show, verdict

from paceline.measure.stats.intervals import ratio_interval

WAYS = ("fixed", "elastic", "elastic(shards=8, deterministic=true)")
WORKERS, SHARDS, COMPUTE = 4, 8, 0.030
WARM = 20  # steps that are not counted


def as_rank(folder: Path, way: str, steps: int) -> None:
    """Train with a compute that waits; rank 0 writes the seconds of its steps."""
    import torch
    from torch import nn

    import paceline

    worker = paceline.join()
    model = nn.ParameterList([nn.Parameter(torch.zeros(1 << 16)) for _ in range(16)])
    pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), membership=way)
    ready = [torch.ones(1 << 16) for _ in model]

    class Waiting(torch.autograd.Function):
        """Waits as long as forward and backward of one batch would take, and has gradients at hand."""

        @staticmethod
        def forward(context: Any, seconds: float, *parameters: Any) -> Any:
            context.seconds = seconds
            time.sleep(seconds / 3)
            return torch.zeros(())

        @staticmethod
        def backward(context: Any, *_: Any) -> Any:
            time.sleep(context.seconds * 2 / 3)
            return (None, *ready)

    elastic = way != "fixed"
    share = COMPUTE / (SHARDS // WORKERS if elastic else 1)
    data = torch.utils.data.TensorDataset(torch.zeros(WORKERS * 8 * (steps + WARM), 1))
    times, last = [], time.perf_counter()
    for _ in worker.batches(data, batch_size=8):
        Waiting.apply(share, *model).backward()
        if pace.step():
            now = time.perf_counter()
            times.append(now - last)
            last = now
    if worker.rank == 0:
        (folder / "found.json").write_text(json.dumps(times[WARM:]))


def start(way: str, steps: int) -> float:
    """Return the median step of one start."""
    with tempfile.TemporaryDirectory(prefix="paceline-overhead-") as name:
        words = [sys.executable, "-m", "paceline", "run", "-np", str(WORKERS), "--membership", way, "--"]
        words += [sys.executable, str(Path(__file__).resolve()), "as-rank", name, way, str(steps)]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, env=environ, cwd=name, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return median(json.loads((Path(name) / "found.json").read_text()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--only")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    ways = [way for way in WAYS if way == "fixed" or chosen.only in (None, way)]
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(chosen.pairs):
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            found[way].append(start(way, chosen.steps))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    rows, lines = [], []
    for way in ways:
        ratio = ratio_interval(found[way], found["fixed"])
        sides = "" if ratio.low is None or ratio.high is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
        rows.append([way, f"{1e3 * median(found[way]):.2f}", f"{ratio.centre:.3f}", sides])
        if way == "elastic" and ratio.high is not None:
            lines.append(verdict("1 / upper end of the ratio", 1 / ratio.high, 1 / 1.03))
    show(("membership", "ms per step", "of fixed", "95 % interval"), rows)
    print(*lines, sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["as-rank"]:
        as_rank(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main()

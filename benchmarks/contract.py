"""What the contract of DDP costs: training steps of this checkout beside those of another one, in fresh processes.

    git worktree add ../before COMMIT
    python benchmarks/contract.py ../before [--only wide] [--starts 10] [--json F]

The loop is plain: forward, backward, `pace.step()`; nobody writes into p.grad. A start runs both checkouts one after
the other, and every second start begins with this one. The ratio is the seconds of a step here divided by those there,
with its 95 % interval over starts; wanted is at most 1.01.

The second figure is for loops that write p.grad in place, in this checkout alone: by how much a step is longer than a
step whose p.grad nobody writes, without the writing itself, as a multiple of the time of one copy of the gradients.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from paceline.measure.stats.intervals import FEWEST, Interval, log_interval, mean_interval

HERE = Path(__file__).resolve().parents[1]
MODELS = {"narrow": (24, 192), "wide": (6, 2048)}  # layers and their width: 3.5 MB and 101 MB of gradients
RANK = """
import json, sys, time
import torch, paceline

layers, width, steps, out = *map(int, sys.argv[1:4]), sys.argv[4]
torch.set_num_threads(1)
torch.manual_seed(0)
worker = paceline.join()


def wrapped():
    model = torch.nn.Sequential(*(m for _ in range(layers) for m in (torch.nn.Linear(width, width), torch.nn.Tanh())))
    return model, paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))


def seconds(act, count):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return sorted(times)[count // 2]


x = torch.randn(16, width)


def plain():
    model(x).square().mean().backward()
    pace.step()


def written():
    model(x).square().mean().backward()
    torch._foreach_mul_([p.grad for p in model.parameters()], 1.0)
    pace.step()


model, pace = wrapped()
seconds(plain, max(5, steps // 4))
result = {"plain": seconds(plain, steps)}
if "writes" in sys.argv:
    seconds(written, max(5, steps // 4))
    result["written"] = seconds(written, steps)
    own = [torch.ones_like(p) for p in model.parameters()]
    result["write"] = seconds(lambda: torch._foreach_mul_(own, 1.0), 9)
    other = [torch.ones_like(p) for p in own]
    result["copy"] = seconds(lambda: torch._foreach_copy_(other, own), 9)
if worker.rank == 0:
    open(out, "w").write(json.dumps(result))
worker.close()
"""


def measured(checkout: Path, model: str, steps: int, *words: str) -> dict[str, float]:
    """Return the seconds of a step in one fresh start of two workers."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        argv = [sys.executable, "-m", "paceline", "run", "-np", "2", "--comm", "shm", "--", sys.executable, "-c", RANK]
        argv += [*map(str, MODELS[model]), str(steps), str(out), *words]
        environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        subprocess.run(argv, check=True, cwd=folder, env=environ, stdout=subprocess.DEVNULL)
        return {name: float(seconds) for name, seconds in json.loads(out.read_text()).items()}


def pair(before: Path, model: str, steps: int, start: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of both checkouts; every second start begins with this one."""
    runs = [lambda: measured(before, model, steps), lambda: measured(HERE, model, steps, "writes")]
    first = start % 2
    results = {place: runs[place]() for place in (first, 1 - first)}
    return results[0], results[1]


def compare(before: Path, model: str, steps: int, starts: int) -> dict[str, Any]:
    pairs = [pair(before, model, steps, start) for start in range(starts)]
    copies = [(after["written"] - after["plain"] - after["write"]) / after["copy"] for _, after in pairs]
    return {
        "model": model,
        "starts": starts,
        "before": median(old["plain"] for old, _ in pairs),
        "after": median(after["plain"] for _, after in pairs),
        "ratio": vars(log_interval([math.log(after["plain"] / old["plain"]) for old, after in pairs])),
        "copies": vars(mean_interval(copies)),
    }


def shown(row: dict[str, Any]) -> str:
    ratio, copies = Interval(**row["ratio"]), Interval(**row["copies"])
    return (
        f"{row['model']:<7} {1e3 * row['before']:8.2f} ms before {1e3 * row['after']:8.2f} ms here   "
        f"ratio {ratio.centre:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]   "
        f"written: {copies.centre:+.2f} copies [{copies.low:+.2f}, {copies.high:+.2f}]   {row['starts']} starts"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a worktree of the code before")
    parser.add_argument("--only", choices=MODELS)
    parser.add_argument("--starts", type=int, default=10, help=f"pairs of fresh starts, at least {FEWEST}")
    parser.add_argument("--steps", type=int, default=60, help="measured steps of a start")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.starts < FEWEST or not (options.before / "paceline").is_dir():
        parser.error(f"--starts is at least {FEWEST}, and the first argument a worktree of paceline")
    rows = []
    for model in [options.only] if options.only else MODELS:
        rows.append(compare(options.before.resolve(), model, options.steps, options.starts))
        print(shown(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

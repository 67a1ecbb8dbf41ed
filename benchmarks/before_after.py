"""Collectives of this checkout beside those of another one: fresh processes of both take turns.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before [--ranks 2] [--turns 8] [--json F]

A ratio is the time of this checkout divided by that of the other, with its 95 % interval over turns; below 1 MiB
the difference in microseconds is what counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 25 * MIB)
HERE = Path(__file__).resolve().parents[1]
T_975 = {4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 15: 2.131, 19: 2.093}
RANK = """
import json, sys, time
import torch, paceline

torch.set_num_threads(1)
worker = paceline.join()
comm, found = worker.comm, {}
for nbytes in json.loads(sys.argv[1]):
    numel = nbytes // 4
    src, dst = comm.allocate(numel, torch.float32), comm.allocate_result(numel, torch.float32)
    own, out = torch.ones(numel), torch.zeros(numel)
    for name, (a, b) in {"in place": (src, dst), "any tensor": (own, out)}.items():
        times = []
        for _ in range(15):
            comm.barrier()
            count, began = max(3, min(200, (16 << 20) // nbytes)), time.perf_counter()
            for _ in range(count):
                comm.all_sum(a, b, "a sum").wait()
            times.append((time.perf_counter() - began) / count)
        found[f"{nbytes} {name}"] = sorted(times)[len(times) // 2]
if worker.first:
    open(sys.argv[2], "w").write(json.dumps(found))
worker.close()
"""


def measured(checkout: Path, ranks: int, sizes: Sequence[int]) -> dict[str, float]:
    """The seconds of each call in one fresh start."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        argv = [sys.executable, "-m", "paceline", "run", "-np", str(ranks), "--comm", "shm", "--"]
        argv += [sys.executable, "-c", RANK, json.dumps(sizes), str(out)]
        environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        subprocess.run(argv, check=True, cwd=folder, env=environ, stdout=subprocess.DEVNULL)
        return {name: float(seconds) for name, seconds in json.loads(out.read_text()).items()}


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean with its 95 % interval."""
    middle, count = mean(values), len(values)
    half = T_975.get(count - 1, 2.0) * stdev(values) / count**0.5
    return middle, middle - half, middle + half


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("before", type=Path)
    words.add_argument("--ranks", type=int, default=2)
    words.add_argument("--turns", type=int, default=8)
    words.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    words.add_argument("--json", type=Path)
    given = words.parse_args()
    checkouts = (given.before.resolve(), HERE)
    turns = [[measured(each, given.ranks, given.sizes) for each in checkouts] for _ in range(given.turns)]
    rows = []
    for name in turns[0][0]:
        ratio = interval([after[name] / before[name] for before, after in turns])
        added = interval([(after[name] - before[name]) * 1e6 for before, after in turns])
        rows.append({"call": name, "before": median(b[name] for b, _ in turns), "ratio": ratio, "microseconds": added})
        rows[-1]["median"] = median((after[name] - before[name]) * 1e6 for before, after in turns)
        nbytes, _, kind = name.partition(" ")
        print(
            f"{int(nbytes):>9} bytes  {kind:<10}  {rows[-1]['before'] * 1e6:>9.1f} us  "
            f"ratio {ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]  "
            f"added {added[0]:+.1f} us [{added[1]:+.1f}, {added[2]:+.1f}], median {rows[-1]['median']:+.1f}",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

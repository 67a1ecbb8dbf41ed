"""Collectives of this checkout beside those of another one, in jobs that take turns (side_by_side.py).

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before [--ranks 2] [--starts 5] [--pairs 30] [--json F]

A ratio is the time of this checkout divided by that of the other, with its 95 % interval over starts; below 1 MiB
the difference in microseconds is what counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from side_by_side import Middle, one_start

from paceline.measure.stats.intervals import FEWEST, Interval, log_interval, mean_interval

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB, 25 * MIB)
SCRIPT = """
import json, time
import torch, paceline

torch.set_num_threads(1)
worker = paceline.join()
comm, acts = worker.comm, {}


def timed(a, b):
    def act(count):
        comm.barrier()
        began = time.perf_counter()
        for _ in range(count):
            comm.all_sum(a, b, "a sum").wait()
        return (time.perf_counter() - began) / count

    return act


for nbytes in json.loads(sys.argv[1]):
    numel = nbytes // 4
    src, dst = comm.allocate(numel, torch.float32), comm.allocate_result(numel, torch.float32)
    acts[f"{nbytes}-in-place"] = timed(src, dst)
    acts[f"{nbytes}-any-tensor"] = timed(torch.ones(numel), torch.zeros(numel))
take_turns(worker, acts)
"""


def calls_of(nbytes: int) -> int:
    """Return the calls of one turn: 50 ms or so."""
    return max(5, min(600, (96 * MIB) // nbytes))


def row_of(name: str, runs: list[Middle]) -> dict[str, Any]:
    added = [run.added * 1e6 for run in runs]
    return {
        "call": name,
        "before": median(run.before for run in runs),
        "ratio": vars(log_interval([run.log for run in runs])),
        "microseconds": vars(mean_interval(added)),
        "median": median(added),
    }


def shown(row: dict[str, Any]) -> str:
    nbytes, _, kind = row["call"].partition("-")
    ratio, added = Interval(**row["ratio"]), Interval(**row["microseconds"])
    return (
        f"{int(nbytes):>9} bytes  {kind:<10}  {row['before'] * 1e6:>9.1f} us  "
        f"ratio {ratio.centre:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]  "
        f"added {added.centre:+.1f} us [{added.low:+.1f}, {added.high:+.1f}], median {row['median']:+.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a worktree of the code before")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--starts", type=int, default=5, help=f"starts of both checkouts, at least {FEWEST}")
    parser.add_argument("--pairs", type=int, default=30, help="turns of each checkout and call in a start")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    counts = {f"{size}-{kind}": calls_of(size) for size in options.sizes for kind in ("in-place", "any-tensor")}
    words = [json.dumps(options.sizes)]
    before = options.before.resolve()
    runs = [
        one_start(before, SCRIPT, counts, words=words, pairs=options.pairs, ranks=options.ranks)[0]
        for _ in range(options.starts)
    ]
    rows = [row_of(name, [run[name] for run in runs]) for name in counts]
    for row in rows:
        print(shown(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

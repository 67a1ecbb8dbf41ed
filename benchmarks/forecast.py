"""How long forecasts take: all strategies for resnet50 at several sizes, each in a process of its own.

    python benchmarks/forecast.py [--quick]

Bounds: 128 ranks under 2 s, 1,024 ranks under 10 s, memory under 500 MB, and time that grows at most linearly in ranks.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time

BOUNDS = {128: 2.0, 1024: 10.0}
MEMORY = 500e6
RANKS = 8  # of a node


def one(ranks: int) -> dict[str, float]:
    """Forecast all strategies on so many ranks; seconds without imports, and the peak of memory."""
    from paceline.cli.forecast import make_study

    machines = f"machines(nodes={ranks // RANKS}, ranks={RANKS}, device=V100, bandwidth=25gbit)"
    make_study("mlp", "machines(device=V100)", "bsp", "8", 64, "fp32", profile=None, step_time=None, link=None)
    began = time.perf_counter()
    study, _ = make_study("resnet50", machines, "all", "", 64, "fp32", profile=None, step_time=None, link=None)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"ranks": ranks, "seconds": seconds, "bytes": peak, "strategies": len(study.strategies)}


def main() -> None:
    words = sys.argv[1:]
    if words and words[0] == "one":
        print(json.dumps(one(int(words[1]))))
        return
    sizes = [16, 128] if "--quick" in words else [16, 128, 1024]
    found = []
    for ranks in sizes:
        done = subprocess.run(
            [sys.executable, __file__, "one", str(ranks)], capture_output=True, text=True, check=True, timeout=600
        )
        found.append(json.loads(done.stdout))
        row = found[-1]
        print(
            f"{ranks:>5} ranks, {row['strategies']} strategies: {row['seconds']:6.2f} s, "
            f"{row['bytes'] / 1e6:5.0f} MB" + (f" (bound {BOUNDS[ranks]:g} s, 500 MB)" if ranks in BOUNDS else ""),
            flush=True,
        )
    first, last = found[0], found[-1]
    growth = (last["seconds"] / first["seconds"]) / (last["ranks"] / first["ranks"])
    print(f"time grows {growth:.2f} times as fast as ranks (bound 1)")
    missed = [row for row in found if row["seconds"] > BOUNDS.get(int(row["ranks"]), 1e9) or row["bytes"] > MEMORY]
    if missed or growth > 1:
        sys.exit("a bound is missed")


if __name__ == "__main__":
    main()

"""How long training stands still when a worker joins an elastic job.

    python benchmarks/elastic_join.py --comm tcp --parameters 1000000 --joins 5

Three workers train a model of so many parameters with momentum. A fourth joins and is stopped again, several
times. The stall of a join is the longest pause between two commits of a member around it, minus the median step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from paceline.elastic.frames import ABSENT
from paceline.elastic.launch import FOLDER, coordinator_command, kept_folder

SCRIPT = """
import json, sys, time
import torch
import paceline
worker = paceline.join()
model = torch.nn.Linear(1000, int(sys.argv[2]) // 1000, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
pace = paceline.wrap(model, optimizer, membership="elastic")
log = open(sys.argv[1], "a", buffering=1)
for x in worker.batches([torch.randn(1000) for _ in range(64)], batch_size=4, epochs=1000000):
    model(x).mean().backward()
    time.sleep(0.004)
    if pace.step():
        print(json.dumps([time.time(), worker.size]), file=log)
"""


class Job:
    def __init__(self, folder: Path, comm: str, parameters: int) -> None:
        self.folder, self.parameters = folder, parameters
        self.job = kept_folder(folder / "job")
        (folder / "train.py").write_text(SCRIPT)
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", FOLDER: str(self.job), "WORLD_SIZE": "4"}
        self.environ["PACELINE_CHOICES"] = json.dumps({"comm": comm})
        (self.job / f"{ABSENT}-3").touch()
        self.processes = [
            subprocess.Popen(
                coordinator_command(self.job, start=4, least=1, most=4, task=50, rule=comm), stderr=subprocess.DEVNULL
            )
        ]

    def work(self, rank: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, str(self.folder / "train.py"), str(self.folder / f"{rank}.log"), str(self.parameters)]
        process = subprocess.Popen(words, env={**self.environ, "RANK": str(rank)}, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def commits(self, rank: int = 0) -> list[tuple[float, int]]:
        path = self.folder / f"{rank}.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), int(size)) for at, size in (json.loads(line) for line in lines if line.endswith("]"))]

    def wait_for_size(self, size: int, since: float) -> None:
        limit = time.monotonic() + 120
        while sum(at > since and members == size for at, members in self.commits()) < 30:
            if time.monotonic() > limit:
                raise TimeoutError(f"no group of {size}")
            time.sleep(0.05)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def stalls(job: Job, joins: int) -> tuple[float, list[float]]:
    """Return the median step, and the stall of every join, in seconds."""
    for rank in range(3):
        job.work(rank)
    job.wait_for_size(3, 0.0)
    for _ in range(joins):
        began = time.time()
        joiner = job.work(3)
        job.wait_for_size(4, began)
        joiner.send_signal(signal.SIGTERM)
        joiner.wait()
        job.wait_for_size(3, time.time())
    commits = job.commits()
    pairs = list(itertools.pairwise(commits))
    usual = median(later[0] - first[0] for first, later in pairs if first[1] == later[1])
    grown = [later[0] - first[0] for first, later in pairs if later[1] > first[1]]
    return usual, [pause - usual for pause in grown]


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that jobs end with this process
    parser = argparse.ArgumentParser(prog="elastic_join")
    parser.add_argument("--comm", choices=("shm", "tcp"), default="tcp")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--joins", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), chosen.comm, chosen.parameters)
        try:
            usual, seen = stalls(job, chosen.joins)
        finally:
            job.close()
    each = ", ".join(f"{1000 * stall:.0f}" for stall in sorted(seen))
    print(
        f"{chosen.comm}, {chosen.parameters:,} parameters: median step {1000 * usual:.0f} ms; a join adds {each} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()

"""What benchmarks share: start this script again as ranks, and print tables.

A benchmark prints ratios against a peer in the same run, with intervals; absolute times are only shown beside.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.cli.show import table
from paceline.cluster.job_folder import job_folder
from paceline.cluster.launchers.local import Local

RANK_WORD = "as-rank"


def on_ranks(script: str, size: int, task: Any, servers: int = 0) -> Any:
    """Run `script as-rank` on `size` processes (and servers) with one thread each; what rank 0 wrote comes back."""
    with job_folder() as folder:
        (folder / "task.json").write_text(json.dumps(task))
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, script, RANK_WORD]
        with Local().start(argv, workers=size, servers=servers, folder=folder, environ=environ, prefix=False) as job:
            job.wait()
        return json.loads((folder / "found.json").read_text())


def is_rank() -> bool:
    return sys.argv[1:2] == [RANK_WORD]


def my_task() -> Any:
    return json.loads((Path(os.environ["PACELINE_JOB"]) / "task.json").read_text())


def hand_in(found: Any) -> None:
    (Path(os.environ["PACELINE_JOB"]) / "found.json").write_text(json.dumps(found))


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in table(head, rows):
        print(line, flush=True)


def verdict(what: str, value: float, target: float) -> str:
    word = "reached" if value >= target else "MISSED"
    return f"{word:8} {what}: {value:.2f} (to reach {target:.2f})"

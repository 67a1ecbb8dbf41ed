"""The task of a shared start: which contenders live in the same processes, and how long they take turns.

folder/turns.json                  the task, written by the launcher
folder/turns-J.rank-K.json         the report of rank K about contender J
"""

from __future__ import annotations

import random
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from paceline.run.run import Run

FEWEST, MOST = 3, 200  # turns of one start, if its seconds set the number
# Vectors of the model's length that a contender holds: parameters, gradients, two arenas, optimizer, buckets.
COPIES = 6


class TurnsTask(BaseModel):
    """The contenders of a shared start, in the order of their labels.

    They take `turns` turns, or as many as fit into `seconds`. `room` replaces the free memory of the host, in bytes.
    With `in_sequence`, each takes all its turns before the next one is built, so that only one is in memory; their
    order is that of `runs`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    runs: tuple[Run, ...] = Field(min_length=1)
    labels: tuple[str, ...]
    turns: int | None = None
    seconds: float = 6.0
    seed: int = 0
    room: int | None = None
    in_sequence: bool = False

    def order(self, turn: int) -> list[int]:
        """Return the order of the contenders in one turn. It is random for each turn, and the same on all ranks."""
        places = list(range(len(self.runs)))
        random.Random(f"{self.seed}, turn {turn}").shuffle(places)
        return places

    def count(self, turn_seconds: float) -> int:
        """Return the number of turns if one takes this many seconds."""
        if self.turns is not None:
            return self.turns
        return min(MOST, max(FEWEST, round(self.seconds / max(turn_seconds, 1e-6))))


def task_path(folder: Path) -> Path:
    return folder / "turns.json"


def report_path(folder: Path, contender: int, rank: int) -> Path:
    return folder / f"turns-{contender}.rank-{rank}.json"


def free_memory() -> int | None:
    """Return the bytes that processes of this host may still take, or None if the kernel does not report it."""
    limits = [_available(), _group_left()]
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _group_left(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that are left of the memory limit of this control group."""
    try:
        most, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return None

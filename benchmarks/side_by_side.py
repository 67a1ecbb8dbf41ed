"""Jobs of two checkouts side by side: both are alive, and one at a time computes for a fraction of a second.

    before  | turn |      |      | turn | turn | ...         a pair is a turn of each, and every second pair begins
    here    |      | turn | turn |      |      | turn ...    with this checkout

A slow second of the machine hits both, and cancels in the ratio of a pair. What stays for the life of a process (where
its memory lies) does not, so there are several starts, and an interval is over starts.

A script makes `acts`, from a word to a function of a count that returns seconds, and calls `take_turns(worker, acts)`.
"""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[1]
PATIENCE = 240.0  # seconds for the slowest turn
TAKE_TURNS = """
import sys


def take_turns(worker, acts):
    folder = sys.argv[-1]
    with open(f"{folder}/go-{worker.rank}") as go, open(f"{folder}/answers", "w") as answers:
        for line in go:
            word, count = line.split()
            seconds = acts[word](int(count))
            if worker.rank == 0:
                print(seconds, file=answers, flush=True)
    worker.close()

"""


class Middle(NamedTuple):
    """Medians over the pairs of one start, in seconds."""

    before: float
    here: float
    log: float  # of the ratio here / before
    added: float


class Side:
    """A job of one checkout that waits for its turns."""

    def __init__(self, checkout: Path, script: str, words: Sequence[object] = (), ranks: int = 2) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        names = [*(f"go-{rank}" for rank in range(ranks)), "answers"]
        for name in names:
            os.mkfifo(folder / name)
        # Opened for reading and writing, a pipe is open at once, and the job may come later.
        *self._go, self._answers = (os.open(folder / name, os.O_RDWR) for name in names)
        argv = [sys.executable, "-m", "paceline", "run", "-np", str(ranks), "--comm", "shm", "--"]
        argv += [sys.executable, "-c", TAKE_TURNS + script, *map(str, words), str(folder)]
        environ = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        self._job = subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Side:
        return self

    def turn(self, word: str, count: int) -> float:
        """Let all ranks run `acts[word](count)`, and return the seconds of rank 0."""
        for pipe in self._go:
            os.write(pipe, f"{word} {count}\n".encode())
        limit, answer = time.monotonic() + PATIENCE, b""
        while not answer.endswith(b"\n"):
            if self._job.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"a job gave no answer to {word}, and ended with {self._job.poll()}")
            if select.select([self._answers], [], [], 0.5)[0]:
                answer += os.read(self._answers, 4096)
        return float(answer)

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        for pipe in (*self._go, self._answers):
            os.close(pipe)
        if problem is not None:
            self._job.terminate()
        self._job.wait(PATIENCE)
        self._folder.cleanup()


class Pairs:
    """Turns of two sides, word by word."""

    def __init__(self, before: Side, here: Side) -> None:
        self._sides, self._count = (before, here), 0

    def pair(self, word: str, count: int) -> tuple[float, float]:
        """Return the seconds of both; every second pair begins with this checkout."""
        order = (0, 1) if self._count % 2 == 0 else (1, 0)
        self._count += 1
        seconds = {place: self._sides[place].turn(word, count) for place in order}
        return seconds[0], seconds[1]


def one_start(
    before: Path,
    script: str,
    counts: Mapping[str, int],
    *,
    words: Sequence[object] = (),
    pairs: int,
    ranks: int = 2,
    alone: Mapping[str, int] | None = None,
) -> tuple[dict[str, Middle], dict[str, float]]:
    """Start both checkouts once. Return the medians over pairs for each word.

    `alone` are words for this checkout only, which come last; the second result has their seconds.
    """
    with ExitStack() as stack:
        sides = [stack.enter_context(Side(checkout, script, words, ranks)) for checkout in (before, HERE)]
        turns = Pairs(*sides)
        for word, count in counts.items():
            turns.pair(word, count)  # the first one warms up
        rows: dict[str, list[tuple[float, float]]] = {word: [] for word in counts}
        for _ in range(pairs):
            for word, count in counts.items():
                rows[word].append(turns.pair(word, count))
        own = {word: sides[1].turn(word, count) for word, count in (alone or {}).items()}
    return {word: middle(row) for word, row in rows.items()}, own


def middle(row: Sequence[tuple[float, float]]) -> Middle:
    return Middle(
        median(before for before, _ in row),
        median(here for _, here in row),
        median(math.log(here / before) for before, here in row),
        median(here - before for before, here in row),
    )

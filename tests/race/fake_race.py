"""A race without processes: rates are random, and slow cells can be killed.

Run as a program it races in a folder, each cell as slow as asked: python fake_race.py RUNS SECONDS
"""

import math
import sys
import time
import zlib
from pathlib import Path

import numpy as np

from paceline.errors import TurnFailed, WorkerFailed
from paceline.measure.combining import failed_record
from paceline.race.folder import open_folder
from paceline.race.plan import plan
from paceline.race.race import race
from paceline.race.suite import Suite

SPEED = {"one worker": 55.0, "limit": 110.0, "ddp": 90.0, "allreduce": 100.0}


def record_of(run, rate, loss=2.0):
    """Return a minimal record."""
    figures = {
        "verdict": "steady",
        "failure": None,
        "unit": "img",
        "rate": {
            "total": {"mean": rate, "low": None, "high": None, "confidence": 0.95, "error": 0.0, "repeats": [rate]},
            "per_worker": [rate / run.workers] * run.workers,
        },
        "step": dict.fromkeys(("median", "p95", "max"), 1 / rate),
        "breakdown": {"step": 1 / rate},
        "bytes": {"received_per_step": [0] * run.workers},
        "resources": {"pss_peak": [0] * run.workers},
        "loss": [loss],
    }
    return failed_record(run, "").model_copy(update=figures)


def drawn(speed=None, noise=0.01, seed=0):
    """Return a measurement that draws rates around known speeds."""
    dice = np.random.default_rng(seed)
    known = SPEED | (speed or {})

    def measured(cell):
        return record_of(cell.run, float(known[cell.label] * (1 + noise * dice.standard_normal()))), []

    return measured


class Isolated:
    """A measurer of isolated starts, from a function of a cell."""

    def __init__(self, measured):
        self.measured = measured

    def alone(self, cell, on_line):
        return self.measured(cell)

    def together(self, start, seconds, on_line):
        raise AssertionError("no contender of this race takes turns")


class Turns:
    """A measurer that draws by cell, so that a start gives the same numbers whenever it runs.

    `noise` is the spread of a ratio between starts; blocks vary by 3 % around it. `failing` are labels of contenders
    that fail; `room` is False where copies of the model do not fit.
    """

    def __init__(self, speed=None, noise=0.01, turns=8, failing=(), room=True):
        self.known, self.noise, self.turns, self.failing, self.room = SPEED | (speed or {}), noise, turns, failing, room
        self.starts, self.weighed = [], []

    def _rates(self, cell):
        dice = np.random.default_rng(zlib.crc32(cell.name.encode()))
        rate = self.known[cell.label] * math.exp(self.noise / math.sqrt(2) * dice.standard_normal())
        return [float(rate * math.exp(0.03 * dice.standard_normal())) for _ in range(self.turns)]

    def _record(self, cell):
        rates = self._rates(cell)
        record = record_of(cell.run, sum(rates) / len(rates))
        record.rate["total"]["repeats"] = rates
        return record, []

    def alone(self, cell, on_line):
        self.starts.append((cell.label,))
        if cell.label in self.failing:
            raise WorkerFailed(f"{cell.label} ran out of luck")
        return self._record(cell)

    def memory(self, cell):
        self.weighed.append(cell.label)
        if cell.label in self.failing:
            raise WorkerFailed(f"{cell.label} ran out of luck")
        return {"pss_peak": [len(cell.label) * 1_000_000] * cell.run.workers, "rss_peak": [9_000_000] * 2}

    def together(self, start, seconds, on_line):
        self.starts.append(tuple(cell.label for cell in start.cells))
        if not self.room:
            raise TurnFailed("4 contenders in each of 2 processes: 9.9 GB are missing", "", "NoRoom")
        for cell in start.cells:
            if cell.label in self.failing:
                raise TurnFailed(f"{cell.label} ran out of luck", cell.label, "NonFinite")
        on_line(0, "stdout", "turn 1/8")
        return [self._record(cell) for cell in start.cells]


def small(**changes):
    return Suite.model_validate({"models": ["mlp"], "rounds": 5, "isolated": True, **changes})


def sure(**changes):
    """A race in turns until it is sure."""
    return Suite.model_validate({"models": ["mlp"], **changes})


def raced(tmp_path, suite=None, measured=None, **settings):
    planned = plan(suite or small())
    folder, _ = open_folder(planned, tmp_path)
    return race(planned, folder, measured=measurer(measured or drawn()), **settings)


def measurer(measured):
    return measured if hasattr(measured, "alone") else Isolated(measured)


def slow(seconds):
    draw = drawn()

    def measured(cell):
        print(cell.name, flush=True)
        time.sleep(seconds)
        return draw(cell)

    return measured


class SlowTurns(Turns):
    """Says when a start begins, and takes its time."""

    def __init__(self, seconds, **settings):
        super().__init__(**settings)
        self.seconds = seconds

    def together(self, start, seconds, on_line):
        print(f"start {start.round}", flush=True)
        time.sleep(self.seconds)
        return super().together(start, seconds, on_line)


if __name__ == "__main__":
    if sys.argv[3:] == ["turns"]:
        raced(Path(sys.argv[1]), sure(), SlowTurns(float(sys.argv[2]), noise=0.05))
    else:
        raced(Path(sys.argv[1]), measured=slow(float(sys.argv[2])))

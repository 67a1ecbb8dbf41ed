"""A race without processes: rates are random, and slow cells can be killed.

Run as a program it races in a folder, each cell as slow as asked: python fake_race.py RUNS SECONDS
"""

import sys
import time
from pathlib import Path

import numpy as np

from paceline.measure.measure import failed_record
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


def small(**changes):
    return Suite.model_validate({"models": ["mlp"], "rounds": 5, **changes})


def raced(tmp_path, suite=None, measured=None, **settings):
    planned = plan(suite or small())
    folder, _ = open_folder(planned, tmp_path)
    return race(planned, folder, measured=measured or drawn(), **settings)


def slow(seconds):
    draw = drawn()

    def measured(cell):
        print(cell.name, flush=True)
        time.sleep(seconds)
        return draw(cell)

    return measured


if __name__ == "__main__":
    raced(Path(sys.argv[1]), measured=slow(float(sys.argv[2])))

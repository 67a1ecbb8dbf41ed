"""paceline rerun: repeat a recorded run, and compare."""

from __future__ import annotations

from pathlib import Path

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.compare import Id, spoken
from paceline.cli.show import TotalLine
from paceline.measure.record.record import check_writable, write
from paceline.measure.record.store import one


@app.command()
def rerun(record: Id, runs: o.Runs = Path("runs"), json: o.JsonFile = None) -> None:
    """Repeat a recorded run on this machine, keep the new record (A), and compare it with the old one (B)."""
    from paceline.race.rerun import check_rerun
    from paceline.race.rerun import rerun as work

    if json is not None:
        check_writable(json)
    old = one(record, runs).record
    check_rerun(old)
    print(f"{old.text}\nstarting {old.workers} worker(s) ...", flush=True)
    total = TotalLine()
    with total:
        stored, comparison = work(old, runs, show=total)
        print(f"record: {stored.path}")
        if comparison is None:
            print(f"nothing to compare with: the run of record {old.id} failed")
        for line in spoken(comparison) if comparison else ():
            print(line)
        if json is not None:
            write(json, stored.record.to_json())

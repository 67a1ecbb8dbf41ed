"""paceline rerun: do a recorded run again and compare."""

from __future__ import annotations

from pathlib import Path

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.compare import Id, spoken
from paceline.cli.show import total_line
from paceline.record import check_writable, write
from paceline.report.store import one


@app.command()
def rerun(record: Id, runs: o.Runs = Path("runs"), json: o.JsonFile = None) -> None:
    """Do a recorded run again on this machine, keep the new record, and compare it (A) with the old one (B)."""
    from paceline.jobs.rerun import check_rerun
    from paceline.jobs.rerun import rerun as work

    if json is not None:
        check_writable(json)
    old = one(record, runs).record
    check_rerun(old)
    print(f"{old.text}\nstarting {old.workers} worker(s) ...", flush=True)
    stored, found = work(old, runs)
    print(f"record: {stored.path}")
    if found is None:
        print(f"nothing to compare with: the run of record {old.id} failed")
    for line in spoken(found) if found else ():
        print(line)
    if json is not None:
        write(json, stored.record.to_json())
    print(total_line(stored.record), flush=True)

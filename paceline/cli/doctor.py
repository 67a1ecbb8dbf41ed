"""paceline doctor: is this machine ready?"""

from __future__ import annotations

import json as jsons
from dataclasses import asdict

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.measure.record.record import check_writable, write


@app.command()
def doctor(json: o.JsonFile = None) -> None:
    """Check this machine and say how to fix what is missing.

    The exit code is 1 if training cannot work.
    """
    from paceline.cluster.doctor import examine

    if json is not None:
        check_writable(json)
    findings = examine()
    for finding in findings:
        print(f"{finding.state:5} {finding.what:13} {finding.text}")
    if json is not None:
        write(json, jsons.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)

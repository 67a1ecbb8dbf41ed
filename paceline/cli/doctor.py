"""paceline doctor: check whether this machine, or a cluster, is ready."""

from __future__ import annotations

import json as jsons
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.errors import WrongCommand
from paceline.measure.record.record import check_writable, write

if TYPE_CHECKING:
    from paceline.cluster.doctor import Finding


@app.command()
def doctor(
    hosts: Annotated[str | None, typer.Option("-H", "--hosts", help="Check these hosts over ssh: a:4,b:4.")] = None,
    hostfile: Annotated[str | None, typer.Option("--hostfile", help="Check the hosts of this file.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="Check the hosts of this cluster file.")] = None,
    launcher: Annotated[str, typer.Option("--launcher", help="Settings of ssh, such as ssh(port=2222).")] = "ssh",
    json: o.JsonFile = None,
) -> None:
    """Check this machine, or the hosts of a cluster, and say how to fix what is missing.

    The exit code is 1 if training cannot work.
    """
    from paceline.cluster.doctor import examine

    if json is not None:
        check_writable(json)
    findings = _of_hosts(hosts, hostfile, cluster, launcher) if hosts or hostfile or cluster else examine()
    width = max(13, *(len(finding.what) for finding in findings))
    for finding in findings:
        print(f"{finding.state:5} {finding.what:{width}} {finding.text}")
    if json is not None:
        write(json, jsons.dumps([asdict(finding) for finding in findings], indent=1) + "\n")
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)


def _of_hosts(hosts: str | None, hostfile: str | None, cluster: str | None, launcher: str) -> Sequence[Finding]:
    from paceline.cluster.doctor_hosts import examine_hosts
    from paceline.cluster.launchers import MENU
    from paceline.cluster.launchers.ssh import Ssh
    from paceline.run.run import Run, hosts_of

    member = MENU.make(launcher)
    if not isinstance(member, Ssh):
        raise WrongCommand(f"--launcher {launcher}", why="hosts are checked over ssh", remedy="--launcher ssh")
    return examine_hosts(hosts_of(Run(hosts=hosts, hostfile=hostfile, cluster_file=cluster)), member)

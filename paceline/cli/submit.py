"""Hand a command to Slurm or Kubernetes, if the launcher names one of them and this process is not inside a job yet."""

from __future__ import annotations

import os
import sys

import typer

from paceline.menu.grammar import parse


def hand_over(launcher: str | None, workers: int) -> None:
    """Submit this command to Slurm, print its manifest for Kubernetes, or become the agent of a pod; then exit.

    Return if this process itself should carry the command out.
    """
    word = parse(launcher).word if launcher is not None else ""
    if word == "slurm":
        _to_slurm(str(launcher), workers)
    elif word == "kubernetes":
        _to_kubernetes(str(launcher))


def _to_slurm(launcher: str, workers: int) -> None:
    from paceline.cluster.batch import submit
    from paceline.cluster.launchers import MENU
    from paceline.cluster.launchers.slurm import inside

    if not inside(os.environ):
        raise typer.Exit(submit(MENU.make(launcher), sys.argv[1:], workers))


def _to_kubernetes(launcher: str) -> None:
    from paceline.cluster.launchers import MENU
    from paceline.cluster.launchers.kubernetes import INDEX, PORT

    member = MENU.make(launcher)
    if INDEX not in os.environ:
        print(member.manifest(["python3", "-m", "paceline", *sys.argv[1:]]), end="")
        raise typer.Exit(0)
    if os.environ[INDEX] != "0":
        first = member.hosts(os.environ)[0].address
        os.execv(sys.executable, [sys.executable, "-m", "paceline.cluster.agent", "--connect", f"{first}:{PORT}"])

"""Hand a command to a batch system, if its launcher names one and this process is not inside a job already."""

from __future__ import annotations

import os
import sys

import typer

from paceline.menu.grammar import parse


def hand_over(launcher: str | None, workers: int) -> None:
    """Submit this very command, show its output to the end, and leave with its exit code."""
    if launcher is None or parse(launcher).word != "slurm":
        return
    from paceline.cluster.batch import submit
    from paceline.cluster.launchers import MENU
    from paceline.cluster.launchers.slurm import inside

    if not inside(os.environ):
        raise typer.Exit(submit(MENU.make(launcher), sys.argv[1:], workers))

"""Start workers on this machine for use with a debugger: rank 0 owns the terminal, and waits have no deadline.

paceline run -np 2 --launcher debug -- python my_train.py        breakpoint() in rank 0 opens a prompt

While rank 0 stands at a breakpoint, the other ranks wait for it without a time limit. Ctrl-C goes to rank 0. Output
of the other ranks is shown with their rank in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.cluster.job import LocalJob
from paceline.cluster.launchers.local import Local
from paceline.cluster.output import OnLine
from paceline.types import Seat


@dataclass(frozen=True)
class Debug(Local):
    name: ClassVar[str] = "debug"

    def start(
        self,
        argv: Sequence[str],
        *,
        workers: int,
        folder: Path,
        environ: Mapping[str, str],
        prefix: bool,
        on_line: OnLine | None = None,
        servers: int = 0,
        seats: Sequence[Seat] = (),
        modules: Sequence[str] = (),  # a debugger wants processes of their own, so nothing is forked
    ) -> LocalJob:
        variables = {**environ, "PACELINE_DEBUG": "1"}
        return self._started(argv, workers, folder, variables, True, on_line, servers, seats, foreground=(0,))

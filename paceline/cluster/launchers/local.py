"""Start all workers on this machine, with the environment variables that torchrun sets.

folder/store/          where ranks find each other; only the user can enter
folder/rank-K.log      output of rank K
folder/rank-K.failed.json   rank K's report of its own failure, if it could write one
folder/rank-K.call     the current call of rank K, if its comm writes it
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.cluster.forking import has_gpu
from paceline.cluster.job import LocalJob
from paceline.cluster.output import OnLine, Output
from paceline.cluster.seats import environment_of, seats_here
from paceline.errors import WrongCommand
from paceline.menu.menu import Member
from paceline.types import Host, Seat


@dataclass(frozen=True)
class Local(Member):
    name: ClassVar[str] = "local"

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return no hosts, because all ranks start on this machine."""
        return ()

    def check(self, seats: Sequence[Seat]) -> None:
        """Accept any seats: this launcher starts them all on this machine."""

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
        modules: Sequence[str] = (),
    ) -> LocalJob:
        """Start the processes. The place of a seat may add a command prefix, for example to enter a host of a lab.

        With `modules`, workers are forked from a process that has imported them, now and when they are restarted.
        """
        return self._started(argv, workers, folder, environ, prefix, on_line, servers, seats, modules=modules)

    def _started(
        self,
        argv: Sequence[str],
        workers: int,
        folder: Path,
        environ: Mapping[str, str],
        prefix: bool,
        on_line: OnLine | None,
        servers: int,
        seats: Sequence[Seat],
        foreground: Collection[int] = (),
        modules: Sequence[str] = (),
    ) -> LocalJob:
        check_command(argv, workers)
        seats = seats or seats_here(workers + servers)
        folder = prepare(folder.absolute(), workers + servers)
        port = free_port()
        job = LocalJob(folder, Output(folder, sys.stdout, sys.stderr, prefix=prefix, on_line=on_line), workers)
        try:
            if modules and not has_gpu(environ):
                job.prepare_forks(modules, environ)
            for seat in seats:
                variables = environment_of(
                    seat,
                    seats,
                    workers,
                    environ,
                    port=port,
                    store=str(folder / "store"),
                    folder=str(folder),
                    sharing=workers,
                )
                job.launch(seat.rank, [*seat.place.prefix, *argv], variables, seat.host.name, seat.rank in foreground)
        except BaseException:
            job.stop()
            raise
        return job


def check_command(argv: Sequence[str], workers: int) -> None:
    if not argv:
        raise WrongCommand("nothing to start", remedy="paceline run -np 4 -- python my_train.py")
    if workers < 1:
        raise WrongCommand(f"-np {workers}", why="a job has at least one worker", remedy="-np 1")


def prepare(folder: Path, processes: int) -> Path:
    """Create the job's folder and remove the files of an earlier job in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = folder / "store"
    if store.exists():
        shutil.rmtree(store)
    store.mkdir(mode=0o700)
    for rank in range(processes):
        for kind in ("failed.json", "call"):
            (folder / f"rank-{rank}.{kind}").unlink(missing_ok=True)
    return folder


def free_port() -> int:
    """Return a port of the loopback interface that is not in use now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

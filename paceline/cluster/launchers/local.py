"""All workers on this machine, under the environment variables that torchrun sets.

folder/store/          where ranks find each other; only the user can enter
folder/rank-K.log      output of rank K
folder/rank-K.failed.json   rank K's report of its own failure, if it could write one
folder/rank-K.call     the current call of rank K, if its comm writes it
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.cluster.job import LocalJob
from paceline.cluster.output import OnLine, Output
from paceline.errors import WrongCommand
from paceline.menu.menu import Member
from paceline.types import Place

# A training step frees and allocates the same memory again and again. By default glibc returns much of it to
# the kernel and faults it in again, page by page; these settings keep it, in huge pages where the kernel has them.
# They apply to every strategy and reference, and a caller's own setting wins.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True)
class Local(Member):
    name: ClassVar[str] = "local"

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
        place: Callable[[int], Place] = lambda rank: Place(),
    ) -> LocalJob:
        """Start `workers` processes of argv, and `servers` more with the ranks after them.

        on_line(rank, "stdout" or "stderr", line) replaces the terminal. `place(rank)` returns where a rank starts,
        for example on a host of a lab.
        """
        if not argv:
            raise WrongCommand("nothing to start", remedy="paceline run -np 4 -- python my_train.py")
        if workers < 1:
            raise WrongCommand(f"-np {workers}", why="a job has at least one worker", remedy="-np 1")
        folder = prepare(folder.absolute(), workers + servers)
        port = free_port()
        job = LocalJob(folder, Output(folder, sys.stdout, sys.stderr, prefix=prefix, on_line=on_line), workers)
        try:
            for rank in range(workers + servers):
                where = place(rank)
                variables = {**environment_of(rank, workers, folder, environ, port, servers), **where.environ}
                job.launch(rank, [*where.prefix, *argv], variables)
        except BaseException:
            job.stop()
            raise
        return job


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


def environment_of(
    rank: int, workers: int, folder: Path, environ: Mapping[str, str], port: int, servers: int = 0
) -> dict[str, str]:
    """Return the caller's environment with the variables of this rank."""
    # An outer torchrun announces its own store in these; ranks of this job must not use it.
    inherited = {name: value for name, value in environ.items() if not name.startswith("TORCHELASTIC_")}
    cores = len(os.sched_getaffinity(0))
    gentle = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": str(max(1, cores // workers)), **KEEP_MEMORY}
    return {
        **gentle,
        **inherited,
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(workers),
        "GROUP_RANK": "0",
        "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PACELINE_SERVERS": str(servers),
        "PACELINE_STORE": str(folder / "store"),
        "PACELINE_JOB": str(folder),
        "PYTHONUNBUFFERED": "1",
    }


def free_port() -> int:
    """Return a port of the loopback interface on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

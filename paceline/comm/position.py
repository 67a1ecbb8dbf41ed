"""The rank of a process in its job, as environment variables of its launcher say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.comm.starters import starter_of
from paceline.errors import WrongCommand

MOST = 1 << 20  # ranks


@dataclass(frozen=True)
class Position:
    """The rank of this process and the size of its job. Workers are ranks 0 to size-1; servers follow them."""

    rank: int
    size: int
    local_rank: int
    folder: Path | None  # where ranks meet under paceline's launcher
    servers: int = 0
    turn: int = 0  # how often this rank has joined before
    meeting: str = ""  # tcp://ADDRESS:PORT of the store, in a job on several hosts
    job: Path | None = None  # the folder of the job on this host
    started_by: str = ""
    first: tuple[str, int] | None = None  # where rank 0 listens, if a program without a store started the ranks

    @property
    def serves(self) -> bool:
        return self.rank >= self.size

    @property
    def all(self) -> int:
        return self.size + self.servers


def position(environ: Mapping[str, str]) -> Position:
    """Read the rank of this process from the variables that its launcher set. Without any, the job has one rank."""
    starter = starter_of(environ)
    environ = starter.variables
    try:
        rank, size = int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1))
        local, servers = int(environ.get("LOCAL_RANK", rank)), int(environ.get("PACELINE_SERVERS", 0))
    except ValueError as problem:
        raise WrongCommand("RANK, WORLD_SIZE or LOCAL_RANK is not a number", why=str(problem)) from None
    for name, value, least in (("WORLD_SIZE", size, 1), ("PACELINE_SERVERS", servers, 0), ("LOCAL_RANK", local, 0)):
        if not least <= value <= MOST:
            raise WrongCommand(
                f"{name}={value}",
                why=f"it is a number from {least} to {MOST:,}",
                remedy="paceline run -np N -- python SCRIPT, or torchrun, which set it",
            )
    if not 0 <= rank < size + servers:
        raise WrongCommand(f"RANK={rank} with WORLD_SIZE={size}", why="a rank lies between 0 and the size")
    store, job = environ.get("PACELINE_STORE", ""), environ.get("PACELINE_JOB")
    remote = store.startswith("tcp://")
    return Position(
        rank,
        size,
        local,
        Path(store) if store and not remote else None,
        servers,
        meeting=store if remote else "",
        job=Path(job) if job else None,
        started_by=str(starter),
        first=(starter.address, starter.port) if starter.port else None,
    )

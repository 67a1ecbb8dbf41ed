"""From the environment of a process to a comm: who am I, where do ranks find each other, what can they use?

Works under our launcher (a folder), under torchrun (its store) and alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from paceline.comm.memory import host_identity
from paceline.comm.queue import DEADLINE
from paceline.comm.store import FolderStore, MemoryStore, Store
from paceline.errors import PeerLost, WrongCommand


@dataclass(frozen=True)
class Position:
    """This process among the others: workers are ranks 0 to size-1, servers come after them."""

    rank: int
    size: int
    local_rank: int
    folder: Path | None  # where our launcher lets ranks find each other
    servers: int = 0
    host: str = ""  # tells hosts of a lab apart, which share one kernel
    turn: int = 0  # how often this process has joined before

    @property
    def serves(self) -> bool:
        return self.rank >= self.size

    @property
    def all(self) -> int:
        return self.size + self.servers


def position(environ: Mapping[str, str]) -> Position:
    """Read torchrun's variables; without them the process is alone."""
    try:
        rank, size = int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1))
        local, servers = int(environ.get("LOCAL_RANK", rank)), int(environ.get("PACELINE_SERVERS", 0))
    except ValueError as problem:
        raise WrongCommand("RANK, WORLD_SIZE or LOCAL_RANK is not a number", why=str(problem)) from None
    if not 0 <= rank < size + servers:
        raise WrongCommand(f"RANK={rank} with WORLD_SIZE={size}", why="a rank lies between 0 and the size")
    folder = environ.get("PACELINE_STORE")
    host = environ.get("PACELINE_HOST", "")
    return Position(rank, size, local, Path(folder) if folder else None, servers, host)


def connect(where: Position, choice: str = "auto", deadline: float = DEADLINE, cuda: bool = False) -> Any:
    """The comm for this process. `auto`: nccl for CUDA tensors, of one rank too, shm on one host, gloo otherwise.

    In a job with servers a worker's comm carries the way to them (`service`), and a server gets an Attendant.
    The way of CUDA tensors has not been run on a GPU yet.
    """
    if cuda and choice in ("shm", "gloo"):
        raise WrongCommand(
            f"--comm {choice}",
            why="it moves memory of the host, and this process trains on a GPU",
            remedy="--comm auto, or CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    if where.all == 1 and not cuda and choice in ("auto", "shm"):
        from paceline.comm.thread import ThreadComm, ThreadGroup

        return ThreadComm(0, ThreadGroup(1), deadline)
    if where.turn and where.servers:
        raise WrongCommand("a second join()", why="the servers have left with the first", remedy="join once")
    store = _store(where, deadline)
    hosts = _hosts(where, store, deadline)
    nodes = tuple(hosts.index(host) for host in hosts)
    if choice == "auto":
        choice = "nccl" if cuda else "shm" if len(set(hosts)) == 1 else "gloo"
    if choice == "shm":
        return _shm(where, store, hosts, deadline)
    return _torch(where, choice, nodes, deadline)


def _torch(where: Position, choice: str, nodes: tuple[int, ...], deadline: float) -> Any:
    from paceline.comm.nccl import NcclComm
    from paceline.comm.service import PATIENCE
    from paceline.comm.torchdist import GlooComm

    cls = {"gloo": GlooComm, "nccl": NcclComm}[choice]
    patience = PATIENCE if where.serves else deadline
    everybody = cls(where.rank, where.all, _torch_store(where, deadline), patience, nodes)
    if not where.servers:
        return everybody
    ranks = list(range(where.all))
    workers = everybody.split([ranks[: where.size], ranks[where.size :]])
    return _with_servers(where, workers, everybody, lambda: everybody.crews(where.size))


def _with_servers(where: Position, workers: Any, everybody: Any, crews: Callable[[], list[Any]]) -> Any:
    from paceline.comm.service import Attendant, Service

    if where.serves:
        return Attendant(everybody, where.size, crews)
    workers.service = Service(everybody, where.servers, crews)
    return workers


def _shm(where: Position, store: Store, hosts: list[str], deadline: float) -> Any:
    from paceline.comm import futex
    from paceline.comm.shm import ShmComm

    if len(set(hosts)) > 1:
        raise WrongCommand("--comm shm", why="the ranks are not all on one host", remedy="--comm auto")
    if not futex.available():
        raise WrongCommand("--comm shm", why="it needs the futexes of Linux", remedy="--comm gloo")
    given = os.environ.get("PACELINE_SHM_FOLDER")
    folder = Path(given) if given else None

    def crews() -> list[ShmComm]:
        """Groups of one worker and all servers that this process is in."""
        mine = range(where.size) if where.serves else (where.rank,)
        rank = where.rank - where.size + 1 if where.serves else 0
        return [ShmComm(rank, 1 + where.servers, store, deadline, folder, f"crew-{worker}") for worker in mine]

    everybody = ShmComm(where.rank, where.all, store, deadline, folder) if where.servers else None
    if where.serves:
        return _with_servers(where, None, everybody, crews)
    workers = ShmComm(where.rank, where.size, store, deadline, folder, "workers")
    return _with_servers(where, workers, everybody, crews) if where.servers else workers


def _hosts(where: Position, store: Store, deadline: float) -> list[str]:
    store.set(f"host/{where.rank}", f"{host_identity()}/{where.host}")
    return [store.get(f"host/{rank}", deadline) for rank in range(where.all)]


def _store(where: Position, deadline: float) -> Store:
    if where.all == 1:
        return MemoryStore()
    if where.folder is not None:
        return FolderStore(where.folder, where.turn)
    return TorchStore(_torch_store(where, deadline))


def _torch_store(where: Position, deadline: float) -> Any:
    """A store of torch.distributed: in our folder, or the one that torchrun offers."""
    import torch.distributed as dist

    if where.folder is not None:
        return dist.FileStore(str(where.folder / f"torch-{where.turn}"), where.all)
    if where.all == 1:
        return dist.HashStore()
    if dist.is_initialized():
        return dist.PrefixStore(f"paceline-{where.turn}", dist.distributed_c10d._get_default_store())
    if "MASTER_ADDR" not in os.environ:
        raise WrongCommand(
            f"WORLD_SIZE={where.size} without MASTER_ADDR",
            why="ranks cannot find each other",
            remedy="paceline run -np N -- python SCRIPT, or torchrun",
        )
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=deadline)))
    return dist.PrefixStore(f"paceline-{where.turn}", store)


class TorchStore:
    """A store of torch.distributed in our words."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def set(self, name: str, text: str) -> None:
        self._store.set(name, text)

    def get(self, name: str, seconds: float) -> str:
        try:
            self._store.wait([name], timedelta(seconds=seconds))
        except Exception:
            raise PeerLost(f"no rank announced {name!r} within {seconds:.0f} s") from None
        return str(self._store.get(name).decode())

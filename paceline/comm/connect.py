"""From the environment of a process to a comm: who am I, where do ranks find each other, what can they use?

Works under our launcher (a folder), under torchrun (its store) and alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
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
    """This process among the others."""

    rank: int
    size: int
    local_rank: int
    folder: Path | None  # where our launcher lets ranks find each other


def position(environ: Mapping[str, str]) -> Position:
    """Read torchrun's variables; without them the process is alone."""
    try:
        rank, size = int(environ.get("RANK", 0)), int(environ.get("WORLD_SIZE", 1))
        local = int(environ.get("LOCAL_RANK", rank))
    except ValueError as problem:
        raise WrongCommand("RANK, WORLD_SIZE or LOCAL_RANK is not a number", why=str(problem)) from None
    if not 0 <= rank < size:
        raise WrongCommand(f"RANK={rank} with WORLD_SIZE={size}", why="a rank lies between 0 and the size")
    folder = environ.get("PACELINE_STORE")
    return Position(rank, size, local, Path(folder) if folder else None)


def connect(where: Position, choice: str = "auto", deadline: float = DEADLINE, cuda: bool = False) -> Any:
    """The comm for this process. `auto`: nccl for CUDA tensors, shm on one host, gloo otherwise."""
    if where.size == 1 and choice in ("auto", "shm"):
        from paceline.comm.thread import ThreadComm, ThreadGroup

        return ThreadComm(0, ThreadGroup(1), deadline)
    store = _store(where, deadline)
    hosts = _hosts(where, store, deadline)
    nodes = tuple(hosts.index(host) for host in hosts)
    if choice == "auto":
        choice = "nccl" if cuda else "shm" if len(set(hosts)) == 1 else "gloo"
    if choice == "shm":
        return _shm(where, store, hosts, deadline)
    from paceline.comm.torchdist import GlooComm, NcclComm

    cls = {"gloo": GlooComm, "nccl": NcclComm}[choice]
    return cls(where.rank, where.size, _torch_store(where, deadline), deadline, nodes)


def _shm(where: Position, store: Store, hosts: list[str], deadline: float) -> Any:
    from paceline.comm import futex
    from paceline.comm.shm import ShmComm

    if len(set(hosts)) > 1:
        raise WrongCommand("--comm shm", why="the ranks are not all on one host", remedy="--comm auto")
    if not futex.available():
        raise WrongCommand("--comm shm", why="it needs the futexes of Linux", remedy="--comm gloo")
    folder = os.environ.get("PACELINE_SHM_FOLDER")
    return ShmComm(where.rank, where.size, store, deadline, Path(folder) if folder else None)


def _hosts(where: Position, store: Store, deadline: float) -> list[str]:
    store.set(f"host/{where.rank}", host_identity())
    return [store.get(f"host/{rank}", deadline) for rank in range(where.size)]


def _store(where: Position, deadline: float) -> Store:
    if where.size == 1:
        return MemoryStore()
    if where.folder is not None:
        return FolderStore(where.folder)
    return TorchStore(_torch_store(where, deadline))


def _torch_store(where: Position, deadline: float) -> Any:
    """A store of torch.distributed: in our folder, or the one that torchrun offers."""
    import torch.distributed as dist

    if where.folder is not None:
        return dist.FileStore(str(where.folder / "torch"), where.size)
    if where.size == 1:
        return dist.HashStore()
    if dist.is_initialized():
        return dist.PrefixStore("paceline", dist.distributed_c10d._get_default_store())
    if "MASTER_ADDR" not in os.environ:
        raise WrongCommand(
            f"WORLD_SIZE={where.size} without MASTER_ADDR",
            why="ranks cannot find each other",
            remedy="paceline run -np N -- python SCRIPT, or torchrun",
        )
    store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=deadline)))
    return dist.PrefixStore("paceline", store)


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

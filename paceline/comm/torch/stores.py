"""Stores of torch.distributed, in which ranks announce their addresses, and its default process group."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from paceline.comm.position import Position
from paceline.comm.process import keep_groups_in_children
from paceline.comm.rendezvous import MemoryStore, TextStore, TurnStore
from paceline.errors import PeerLost, WrongCommand


def torch_store(where: Position, deadline: float, store: TextStore) -> Any:
    """Return a store for torch.distributed: a file, a TCP store of rank 0, or a part of torchrun's store."""
    import torch.distributed as dist

    if where.meeting and where.all > 1:
        return _served_by_first(where, store, deadline)
    if where.folder is not None:
        return dist.FileStore(str(where.folder / f"torch-{where.turn}"), where.all)
    if where.all == 1:
        return dist.HashStore()
    return dist.PrefixStore(f"torch-{where.turn}", outer_store(where, deadline))


def open_default_group(where: Position, comm: Any, deadline: float, cuda: bool) -> Callable[[], None] | None:
    """Create torch's default process group, and return the function that destroys it.

    Return None if the script has a default group already.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        return None
    keep_groups_in_children()
    store = comm.store or TurnStore(MemoryStore(), 0)  # a single process has no store
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        store=torch_store(replace(where, turn=store.turn), deadline, store),
        rank=where.rank,
        world_size=where.size,
        timeout=timedelta(seconds=deadline),
    )
    return dist.destroy_process_group


def _served_by_first(where: Position, store: TextStore, deadline: float) -> Any:
    """Return torch's TCP store, which rank 0 serves at MASTER_ADDR. torch's store does not check a token."""
    import torch.distributed as dist

    address, patience = os.environ["MASTER_ADDR"], timedelta(seconds=deadline)
    if where.rank:
        port = int(store.get("torch-port", deadline))
        return dist.TCPStore(address, port, where.all, False, patience, wait_for_workers=False)
    door = socket.create_server((address, 0), backlog=4096)
    port = int(door.getsockname()[1])
    served = dist.TCPStore(
        address, port, where.all, True, patience, wait_for_workers=False, master_listen_fd=door.detach()
    )
    store.set("torch-port", str(port))
    return served


def outer_store(where: Position, deadline: float) -> Any:
    """Return the store of the script's default process group; if it has none, rank 0's (MPI, Slurm) or torchrun's."""
    import torch.distributed as dist

    if dist.is_initialized():
        return dist.PrefixStore("paceline", dist.distributed_c10d._get_default_store())
    if where.first is not None:
        return dist.PrefixStore("paceline", _at_first(where, where.first, deadline))
    if "MASTER_ADDR" not in os.environ:
        raise WrongCommand(
            f"WORLD_SIZE={where.size} without MASTER_ADDR",
            why="ranks cannot find each other",
            remedy="paceline run -np N -- python SCRIPT, or torchrun",
        )
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=deadline)))
    except dist.DistError as problem:
        from paceline.comm.torch.groupboard import first_line

        address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', '')}"
        raise PeerLost(f"rank {where.rank} cannot reach the others at {address}", why=first_line(problem)) from None
    return dist.PrefixStore("paceline", store)


def _at_first(where: Position, place: tuple[str, int], deadline: float) -> Any:
    """Return torch's TCP store, served by rank 0. Used under MPI and Slurm, which provide ranks but no store."""
    import torch.distributed as dist

    address, port = place
    patience = timedelta(seconds=deadline)
    try:
        if where.rank:
            return dist.TCPStore(address, port, where.all, False, patience, wait_for_workers=False)
        door = socket.create_server((address if address.startswith("127.") else "", port), backlog=4096)
    except (OSError, dist.DistError) as problem:
        text = str(problem).strip().splitlines()[0]
        raise PeerLost(
            f"{where.started_by}: they cannot meet", why=text, remedy="set MASTER_ADDR and MASTER_PORT for all ranks"
        ) from None
    return dist.TCPStore(
        address, port, where.all, True, patience, wait_for_workers=False, master_listen_fd=door.detach()
    )


class TorchStore:
    """A TextStore over a store of torch.distributed."""

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

    def claim(self, name: str, text: str) -> str:
        return str(self._store.compare_set(name, "", text).decode())

    def look(self, name: str) -> str | None:
        return str(self._store.get(name).decode()) if self._store.check([name]) else None

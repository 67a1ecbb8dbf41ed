"""Create the comm of a process. Environment variables give its rank, the meeting place of ranks, and the transport.

Ranks exchange their addresses in a meeting place: under paceline's launchers a folder, or a TCP store for several
hosts; under torchrun its own store; under mpirun and srun a store that rank 0 serves. A single process needs none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.comm.claim import claim_turn
from paceline.comm.kinds import kind_of
from paceline.comm.position import Position
from paceline.comm.rendezvous import FolderStore, MemoryStore, TextStore, TurnStore
from paceline.comm.shm.memory import host_identity
from paceline.comm.shm.queue import DEADLINE
from paceline.comm.socketstore import open_store
from paceline.comm.tcp.settings import TcpSettings
from paceline.comm.torch.stores import TorchStore, outer_store, torch_store
from paceline.errors import WrongCommand
from paceline.menu.grammar import parse
from paceline.menu.menu import make

DEBUG = "PACELINE_DEBUG"  # set by the launcher debug: no wait has a deadline
ENDLESS = 10_000_000.0  # seconds
TOKEN = "PACELINE_TOKEN"  # holds the token of a store that is served over TCP


def connect(
    where: Position, choice: str = "auto", deadline: float = DEADLINE, cuda: bool = False, buffer: int = 0
) -> Any:
    """Return the comm of this process. `auto` selects nccl for CUDA tensors, else shm on one host, else node.

    Between hosts, `auto` selects gloo instead of node if every host has one rank, or if the job has servers.

    `buffer` is the size of socket buffers for tcp. In a job with servers, a worker's comm has a `service` that talks to
    them; a server process gets an Attendant instead of a comm.
    The CUDA path has not been run on a GPU yet.
    """
    deadline = ENDLESS if DEBUG in os.environ else deadline
    word = parse(choice).word
    if cuda and kind_of(choice).memory == "host":
        raise WrongCommand(
            f"--comm {choice}",
            why="it moves memory of the host, and this process trains on a GPU",
            remedy="--comm auto, or CUDA_VISIBLE_DEVICES= to train on CPUs",
        )
    if where.all == 1 and not cuda and choice in ("auto", "shm"):
        from paceline.comm.thread import ThreadComm, ThreadGroup

        return ThreadComm(0, ThreadGroup(1), deadline)
    store, turn = _take_turn(where, deadline)
    where = replace(where, turn=turn)
    hosts = _hosts(where, store, deadline)
    nodes = tuple(hosts.index(host) for host in hosts)
    if choice == "auto":
        word = choice = "nccl" if cuda else _between_cpus(where, hosts)
    makers: dict[str, Callable[[], Any]] = {
        "shm": lambda: _shm(where, store, hosts, deadline),
        "node": lambda: _node(where, store, nodes, deadline),
        "tcp": lambda: _tcp(where, store, nodes, deadline, settings_of(choice, buffer)),
    }
    comm = makers[word]() if word in makers else _torch(where, choice, nodes, deadline, store)
    comm.store = store  # kept, because claims of ranks must last as long as the job, and rank 0 may serve them
    return comm


def _between_cpus(where: Position, hosts: list[str]) -> str:
    """Return the word of the comm for CPU tensors. It uses shared memory if a host has several ranks."""
    if len(set(hosts)) == 1:
        return "shm"
    return "gloo" if where.servers or len(set(hosts)) == len(hosts) else "node"


def _node(where: Position, store: TextStore, nodes: tuple[int, ...], deadline: float) -> Any:
    from paceline.comm.node import NodeComm

    if where.servers:
        raise WrongCommand("--comm node", why="a job with servers has no such comm yet", remedy="--comm gloo")
    whole = _torch(where, "gloo", nodes, deadline, store)
    setting = os.environ.get("PACELINE_SHM_FOLDER")
    return NodeComm(whole, store, Path(setting) if setting else None)


def settings_of(choice: str, buffer: int = 0) -> TcpSettings:
    """Return the settings of a text such as `tcp(streams=2)`. If it has no buffer, use that of --socket-buffer."""
    settings: TcpSettings = make(TcpSettings, parse(choice))
    return settings if settings.buffer else replace(settings, buffer=buffer)


def _tcp(where: Position, store: TextStore, nodes: tuple[int, ...], deadline: float, settings: TcpSettings) -> Any:
    from paceline.comm.service import PATIENCE
    from paceline.comm.tcp.station import own_address
    from paceline.comm.tcp.tcp import TcpComm

    address = own_address(os.environ, one_host=len(set(nodes)) == 1)
    patience = PATIENCE if where.serves else deadline
    everybody = TcpComm(where.rank, where.all, store, patience, nodes, address=address, settings=settings)
    if not where.servers:
        return everybody
    ranks = list(range(where.all))
    workers = everybody.split([ranks[: where.size], ranks[where.size :]])
    return _with_servers(where, workers, everybody, lambda: everybody.crews(where.size))


def _torch(where: Position, choice: str, nodes: tuple[int, ...], deadline: float, store: TextStore) -> Any:
    from paceline.comm.service import PATIENCE
    from paceline.comm.torch.gloo import GlooComm
    from paceline.comm.torch.nccl import NcclComm

    cls = {"gloo": GlooComm, "nccl": NcclComm}[choice]
    patience = PATIENCE if where.serves else deadline
    everybody = cls(where.rank, where.all, torch_store(where, deadline, store), patience, nodes)
    if not where.servers:
        return _comparing(everybody, where)
    ranks = list(range(where.all))
    workers = everybody.split([ranks[: where.size], ranks[where.size :]])
    _comparing(workers, where)
    return _with_servers(where, workers, everybody, lambda: everybody.crews(where.size))


def _comparing(comm: Any, where: Position) -> Any:
    """Make ranks of a gloo comm compare their calls, and write each call to a file in the folder of the job."""
    if comm.backend == "gloo" and comm.size > 1:
        comm.compare_calls(where.job / f"rank-{where.rank}.call" if where.job else None)
    return comm


def _with_servers(where: Position, workers: Any, everybody: Any, crews: Callable[[], list[Any]]) -> Any:
    from paceline.comm.service import Attendant, Service

    if where.serves:
        return Attendant(everybody, where.size, crews)
    workers.service = Service(everybody, where.servers, crews)
    return workers


def _shm(where: Position, store: TextStore, hosts: list[str], deadline: float) -> Any:
    from paceline.comm.shm import futex
    from paceline.comm.shm.shm import ShmComm

    if len(set(hosts)) > 1:
        raise WrongCommand("--comm shm", why="the ranks are not all on one host", remedy="--comm auto")
    if not futex.available():
        raise WrongCommand("--comm shm", why="it needs the futexes of Linux", remedy="--comm gloo")
    setting = os.environ.get("PACELINE_SHM_FOLDER")
    folder = Path(setting) if setting else None

    def crews() -> list[ShmComm]:
        """Create the groups that this process belongs to. Each group has one worker and all servers."""
        mine = range(where.size) if where.serves else (where.rank,)
        rank = where.rank - where.size + 1 if where.serves else 0
        return [ShmComm(rank, 1 + where.servers, store, deadline, folder, f"crew-{worker}") for worker in mine]

    everybody = ShmComm(where.rank, where.all, store, deadline, folder) if where.servers else None
    if where.serves:
        return _with_servers(where, None, everybody, crews)
    workers = ShmComm(where.rank, where.size, store, deadline, folder, "workers")
    return _with_servers(where, workers, everybody, crews) if where.servers else workers


def _hosts(where: Position, store: TextStore, deadline: float) -> list[str]:
    store.set(f"host/{where.rank}", host_identity())
    return [store.get(f"host/{rank}", deadline) for rank in range(where.all)]


def _take_turn(where: Position, deadline: float) -> tuple[TextStore, int]:
    """Claim this process's rank. Return a view of the store for this turn, and the turn."""
    whole = _store(where, deadline)
    turn = claim_turn(whole, where.rank)
    if turn and where.servers:
        raise WrongCommand("a second join()", why="the servers ended with the first", remedy="call join() once")
    return TurnStore(whole, turn), turn


def _store(where: Position, deadline: float) -> TextStore:
    if where.all == 1:
        return MemoryStore()
    if where.folder is not None:
        return FolderStore(where.folder)
    if where.meeting:
        return open_store(where.meeting, os.environ.get(TOKEN, ""), deadline)
    return TorchStore(outer_store(where, deadline))

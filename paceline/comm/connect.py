"""Create the comm of a process. Environment variables give its rank, the meeting place of ranks, and the transport.

Ranks exchange their addresses in a meeting place: under paceline's launchers a folder, or a TCP store for several
hosts; under torchrun its own store; under mpirun and srun a store that rank 0 serves. A single process needs none.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from paceline.comm.claim import claim_turn
from paceline.comm.kinds import kind_of
from paceline.comm.process import keep_groups_in_children
from paceline.comm.rendezvous import FolderStore, MemoryStore, TextStore, TurnStore
from paceline.comm.shm.memory import host_identity
from paceline.comm.shm.queue import DEADLINE
from paceline.comm.socketstore import open_store
from paceline.comm.starters import starter_of
from paceline.comm.tcp.settings import TcpSettings
from paceline.errors import PeerLost, WrongCommand
from paceline.menu.grammar import parse
from paceline.menu.menu import make

MOST = 1 << 20  # ranks
DEBUG = "PACELINE_DEBUG"  # set by the launcher debug: no wait has a deadline
ENDLESS = 10_000_000.0  # seconds
TOKEN = "PACELINE_TOKEN"  # holds the token of a store that is served over TCP


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
    everybody = cls(where.rank, where.all, _torch_store(where, deadline, store), patience, nodes)
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
    return TorchStore(_outer_store(where, deadline))


def _torch_store(where: Position, deadline: float, store: TextStore) -> Any:
    """Return a store for torch.distributed: a file in the launcher's folder, a TCP store of rank 0 for several hosts,
    or a part of torchrun's store."""
    import torch.distributed as dist

    if where.meeting and where.all > 1:
        return _served_by_first(where, store, deadline)
    if where.folder is not None:
        return dist.FileStore(str(where.folder / f"torch-{where.turn}"), where.all)
    if where.all == 1:
        return dist.HashStore()
    return dist.PrefixStore(f"torch-{where.turn}", _outer_store(where, deadline))


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
        store=_torch_store(replace(where, turn=store.turn), deadline, store),
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


def _outer_store(where: Position, deadline: float) -> Any:
    """Return the store of the script's default process group; else rank 0's under MPI or Slurm; else torchrun's."""
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

"""Start agents as actors of a Ray cluster.

    paceline run --launcher ray -np 8 ...            on a machine of the cluster

One placement group reserves the cores of all nodes at once; one actor per node runs the agent of that node and passes
its messages on. Nodes are known by Ray's node id, because several may have one host name. Needs the extra `ray`.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from paceline.cluster.agent import SILENCE
from paceline.cluster.agent_job import AgentJob
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.launchers.local import check_command, prepare
from paceline.cluster.launchers.ssh import passed_on
from paceline.cluster.output import OnLine, Output
from paceline.cluster.seats import hosts_in
from paceline.errors import MissingPackage, PacelineError
from paceline.menu.menu import Member
from paceline.types import Host, Seat

PATIENCE = 120.0  # seconds for the placement group and for the actors to start
PAUSE = 0.05  # seconds that an actor waits for output before it answers
LABEL = "ray.io/node-id"


@dataclass(frozen=True)
class Ray(Member):
    """Settings for Ray. A node gets `slots` workers, by default as many as fit. Each takes `cpus` and `gpus`."""

    name: ClassVar[str] = "ray"

    address: str = "auto"
    slots: int = 0
    cpus: float = 1.0
    gpus: float = 0.0
    silence: float = 2 * SILENCE

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the nodes of the cluster that are alive."""
        return tuple(
            Host(f"node-{one['NodeID'][:8]}", self.slots or _room(one, self.cpus), address=one["NodeManagerAddress"])
            for one in _nodes(self.address)
            if self.slots or _room(one, self.cpus)
        )

    def check(self, seats: Sequence[Seat]) -> None:
        _nodes(self.address)

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
    ) -> AgentJob:
        check_command(argv, workers)
        folder = prepare(folder.absolute(), len(seats))
        used = hosts_in(seats)
        ranks = [[seat.rank for seat in seats if seat.host.name == host.name] for host in used]
        actors = self._actors(used, [len(mine) for mine in ranks])
        links = []
        for host, mine, actor in zip(used, ranks, actors, strict=True):
            number = _carried(actor)
            links.append(AgentLink(host, mine, number, os.dup(number)))
        output = Output(folder, sys.stdout, sys.stderr, prefix=prefix, on_line=on_line)
        job = AgentJob(folder, output, links, seats, workers, silence=self.silence, patience=PATIENCE)
        job.begin(argv, passed_on(environ))
        return job

    def _actors(self, hosts: Sequence[Host], counts: Sequence[int]) -> list[Any]:
        """Reserve the cores of all nodes at once and start one actor on each."""
        ray = _ray()
        ids = {f"node-{one['NodeID'][:8]}": one["NodeID"] for one in _nodes(self.address)}
        wanted = [{"CPU": self.cpus * count, **({"GPU": self.gpus * count} if self.gpus else {})} for count in counts]
        group = ray.util.placement_group(
            wanted, strategy="SPREAD", bundle_label_selector=[{LABEL: ids[host.name]} for host in hosts]
        )
        if not group.wait(PATIENCE):
            ray.util.remove_placement_group(group)
            raise PacelineError(
                "Ray has no room for the job",
                why=f"it could not reserve {wanted} within {PATIENCE:g} s",
                remedy="ray status shows what is in use; ray(cpus=0.5) asks for less",
            )
        remote = ray.remote(AgentActor)
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        return [
            remote.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=strategy(placement_group=group, placement_group_bundle_index=index),
            ).remote(sys.executable, os.getcwd(), os.environ.get("PYTHONPATH", ""))
            for index, bundle in enumerate(wanted)
        ]


class AgentActor:
    """The actor of one node. It runs the agent and passes bytes between the agent and the launcher."""

    def __init__(self, python: str, folder: str, path: str) -> None:
        environ = {**os.environ, **({"PYTHONPATH": path} if path else {})}
        self._agent = subprocess.Popen(
            [python, "-m", "paceline.cluster.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder if Path(folder).is_dir() else None,
            env=environ,
            bufsize=0,
        )

    def exchange(self, data: bytes) -> bytes | None:
        """Pass bytes to the agent. Return the bytes that it has written, or None if it has ended."""
        source, sink = self._agent.stdout, self._agent.stdin
        assert source is not None
        assert sink is not None
        try:
            while data:
                data = data[sink.write(data) :]
        except OSError:
            pass
        if not select.select([source], [], [], PAUSE)[0]:
            return b""
        return os.read(source.fileno(), 1 << 20) or None


def _carried(actor: Any) -> int:
    """Return a descriptor connected to the agent of an actor. A thread passes the bytes."""
    ours, theirs = socket.socketpair()
    threading.Thread(target=_carry, args=(actor, theirs), name="ray carries", daemon=True).start()
    return ours.detach()


def _carry(actor: Any, line: socket.socket) -> None:
    ray = _ray()
    line.setblocking(False)
    with line:
        try:
            while True:
                data = _waiting(line)
                if data is None:
                    break
                answer = ray.get(actor.exchange.remote(data), timeout=PATIENCE)
                if answer is None:
                    break
                line.setblocking(True)
                line.sendall(answer)
                line.setblocking(False)
        except (OSError, ray.exceptions.RayError):
            pass  # the launcher sees the end of the line
    ray.kill(actor)


def _waiting(line: socket.socket) -> bytes | None:
    """Return what the launcher has sent, without waiting, or None if it has closed the connection."""
    try:
        return line.recv(1 << 20) or None
    except BlockingIOError:
        return b""


def _room(node: Mapping[str, Any], cpus: float) -> int:
    return int(node["Resources"].get("CPU", 0) // cpus)


def _ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise MissingPackage("launcher ray", package="ray", extra="ray") from None
    return ray


@cache
def _nodes(address: str) -> list[dict[str, Any]]:
    """Connect to the cluster and return its live nodes, sorted by address."""
    ray = _ray()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as problem:
        raise PacelineError(
            f"no Ray cluster at {address}",
            why=str(problem).splitlines()[0],
            remedy="ray start, or ray(address=HOST:6379)",
        ) from None
    alive = [one for one in ray.nodes() if one["Alive"]]
    return sorted(alive, key=lambda one: (one["NodeManagerAddress"], one["NodeID"]))

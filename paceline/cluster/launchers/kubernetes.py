"""Write an indexed Job and a headless Service of Kubernetes, for the user to apply. paceline never calls kubectl.

    paceline run --launcher "kubernetes(image=me/train, pods=2, slots=4)" -np 8 ... > job.yaml

    pod 0   paceline run ...      starts the ranks of pod 0, and waits for the agents of the others
    pod 1   paceline run ...      sees its index and becomes an agent, which dials pod 0 by its headless name
    ...

All pods run the same command. Agents must prove that they know the token, which comes from a Secret.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from paceline.cluster.agent import SILENCE, TOKEN
from paceline.cluster.agent_job import AgentJob
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.launchers.local import check_command, prepare
from paceline.cluster.launchers.ssh import passed_on
from paceline.cluster.output import OnLine, Output
from paceline.cluster.seats import hosts_in
from paceline.comm.frames import BadFrame, receive, welcome
from paceline.errors import PacelineError, WrongCommand
from paceline.menu.menu import Member
from paceline.types import Host, Seat

PORT = 29400
INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes in every pod of an indexed Job
PATIENCE = 600.0  # seconds for all pods to start: images are pulled meanwhile


@dataclass(frozen=True)
class Kubernetes(Member):
    """Settings of the Job. `cpu`, `memory`, `storage` and `gpu` are per pod. `claim` names a volume for records."""

    name: ClassVar[str] = "kubernetes"

    image: str = "paceline"
    pods: int = 2
    slots: int = 1
    job: str = "paceline"
    namespace: str = ""
    cpu: str = "1"
    memory: str = "4Gi"
    storage: str = "4Gi"
    gpu: int = 0
    shm: str = "1Gi"
    claim: str = ""
    host_network: bool = False
    silence: float = SILENCE

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the pods as hosts. The headless Service defines their names."""
        return tuple(
            Host(f"{self.job}-{index}", self.slots, address=f"{self.job}-{index}.{self.job}")
            for index in range(self.pods)
        )

    def check(self, seats: Sequence[Seat]) -> None:
        if os.environ.get(INDEX) != "0":
            raise WrongCommand(
                "launcher kubernetes",
                why="this process is not pod 0 of a Job",
                remedy="paceline run --launcher kubernetes, which writes the Job",
            )
        if not os.environ.get(TOKEN):
            raise WrongCommand(f"no {TOKEN}", why="agents must prove it", remedy="kubectl create secret, see the Job")

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
        ranks = {host.name: [seat.rank for seat in seats if seat.host.name == host.name] for host in used}
        own = [sys.executable, "-m", "paceline.cluster.agent"]
        first = AgentLink.started(used[0], ranks[used[0].name], own)
        try:
            lines = gathered({int(host.name.rpartition("-")[2]) for host in used[1:]}, environ[TOKEN])
        except BaseException:
            first.kill()
            raise
        links = [first]
        for host in used[1:]:
            number = lines[int(host.name.rpartition("-")[2])].detach()
            links.append(AgentLink(host, ranks[host.name], number, os.dup(number)))
        output = Output(folder, sys.stdout, sys.stderr, prefix=prefix, on_line=on_line)
        job = AgentJob(folder, output, links, seats, workers, silence=self.silence)
        job.begin(argv, passed_on(environ))
        return job

    def manifest(self, command: Sequence[str]) -> str:
        """Return the Service and the Job as YAML."""
        head = [
            f"# kubectl create secret generic {self.job} --from-literal=token=$(openssl rand -hex 32)",
            "# kubectl apply -f THIS_FILE",
        ]
        return "\n".join([*head, *_yaml(self.service()), "---", *_yaml(self.batch(command))]) + "\n"

    def service(self) -> dict[str, Any]:
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": self.job},
            "ports": [{"name": "agents", "port": PORT}],
        }
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._metadata(), "spec": spec}

    def batch(self, command: Sequence[str]) -> dict[str, Any]:
        spec = {
            "completionMode": "Indexed",
            "completions": self.pods,
            "parallelism": self.pods,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"job-name": self.job}}, "spec": self._pod(command)},
        }
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": self._metadata(), "spec": spec}

    def _metadata(self) -> dict[str, Any]:
        return {"name": self.job, **({"namespace": self.namespace} if self.namespace else {})}

    def _pod(self, command: Sequence[str]) -> dict[str, Any]:
        network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if self.host_network else {}
        volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": self.shm}}]
        if self.claim:
            volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": self.claim}})
        return {
            "restartPolicy": "Never",
            "subdomain": self.job,
            **network,
            "containers": [self._container(command)],
            "volumes": volumes,
        }

    def _container(self, command: Sequence[str]) -> dict[str, Any]:
        amounts: dict[str, Any] = {"cpu": self.cpu, "memory": self.memory, "ephemeral-storage": self.storage}
        if self.gpu:
            amounts["nvidia.com/gpu"] = self.gpu
        mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
        variables: list[dict[str, Any]] = [
            {"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": self.job, "key": "token"}}}
        ]
        if self.claim:
            mounts.append({"name": "runs", "mountPath": "/runs"})
            variables.append({"name": "PACELINE_RUNS", "value": "/runs"})
        return {
            "name": "paceline",
            "image": self.image,
            "command": list(command),
            "env": variables,
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": mounts,
        }


def gathered(indices: set[int], token: str, seconds: float = PATIENCE) -> dict[int, socket.socket]:
    """Wait until the agents of these pods have connected and proved the token. Return their sockets by index."""
    lines: dict[int, socket.socket] = {}
    limit = time.monotonic() + seconds
    with socket.create_server(("", PORT), backlog=1024) as door:
        while set(lines) != indices:
            door.settimeout(max(0.1, limit - time.monotonic()))
            try:
                line, _ = door.accept()
            except TimeoutError:
                for line in lines.values():
                    line.close()
                lacking = ", ".join(map(str, sorted(indices - set(lines))))
                raise PacelineError(f"pod {lacking} did not connect within {seconds:g} s") from None
            index = _index(line, token)
            if index in indices and index not in lines:
                lines[index] = line
            else:
                line.close()
    return lines


def _index(line: socket.socket, token: str) -> int | None:
    try:
        welcome(line, token)
        message = receive(line)
        line.settimeout(None)
    except (OSError, BadFrame):
        return None
    index = message.get("index") if isinstance(message, dict) else None
    return index if isinstance(index, int) else None


def _yaml(value: Any, indent: int = 0) -> Iterator[str]:
    """Yield the lines of a value in YAML. Texts are quoted as in JSON, which YAML accepts."""
    space = "  " * indent
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, (dict, list)) and inner:
                yield f"{space}{key}:"
                yield from _yaml(inner, indent + 1)
            else:
                yield f"{space}{key}: {json.dumps(inner)}"
    elif isinstance(value, list):
        for inner in value:
            lines = list(_yaml(inner, indent + 1)) if isinstance(inner, dict) else [f"{space}  {json.dumps(inner)}"]
            yield f"{space}- {lines[0].strip()}"
            yield from lines[1:]

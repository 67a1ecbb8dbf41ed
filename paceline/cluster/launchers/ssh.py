"""Start one agent per host with the user's ssh client.

    paceline run -H a:4,b:4 --model resnet50
    ssh -o BatchMode=yes a 'cd FOLDER && exec python -m paceline.cluster.agent'

Keys, jump hosts and ports come from the user's ssh configuration; settings here and in a cluster file add to it. ssh
never asks for a password. Environment variables of libraries (NCCL_*, GLOO_*, ...) are passed on to the hosts; all
other variables keep the values of the host.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.cluster.agent import SILENCE
from paceline.cluster.agent_job import AgentJob
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.launchers.local import check_command, prepare
from paceline.cluster.output import OnLine, Output
from paceline.cluster.seats import hosts_in
from paceline.errors import WrongCommand
from paceline.menu.menu import Member
from paceline.types import Host, Seat

CONNECT = 10  # seconds
PASSED = ("PACELINE_", "NCCL_", "GLOO_", "TORCH_", "UCX_", "FI_", "OMP_", "MKL_", "KMP_")
ALSO = ("PYTHONPATH", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
OWN = ("PACELINE_RUNS", "PACELINE_GUARD", "PACELINE_STORE", "PACELINE_JOB", "PACELINE_TOKEN")
REMEDIES = {
    "Permission denied": "ssh-copy-id {host}, or --launcher 'ssh(identity=FILE)'",
    "Host key verification failed": "ssh {host} once, to accept its key",
    "REMOTE HOST IDENTIFICATION HAS CHANGED": "look into ~/.ssh/known_hosts: the key of {host} has changed",
    "Could not resolve hostname": "check the spelling of {host}, or give its address in --cluster FILE",
    "No module named": "install paceline on {host}, or name its interpreter: --launcher 'ssh(python=PATH)'",
    "No such file": "--launcher 'ssh(python=PATH, folder=PATH)', which hosts must have",
    "not found": "--launcher 'ssh(python=PATH)', which hosts must have",
    "": "ssh {host} true",
}


@dataclass(frozen=True)
class Ssh(Member):
    """Settings for all hosts. A cluster file may override them for one host. `config` is an ssh_config file.

    A host that is silent for `silence` seconds counts as lost.
    """

    name: ClassVar[str] = "ssh"

    port: int = 0
    user: str = ""
    identity: str = ""
    config: str = ""
    python: str = ""
    folder: str = ""
    silence: float = SILENCE

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return no hosts, because the user names them."""
        return ()

    def check(self, seats: Sequence[Seat]) -> None:
        if shutil.which("ssh") is None:
            raise WrongCommand("launcher ssh", why="there is no ssh here", remedy="apt-get install openssh-client")
        if any(not seat.host.name for seat in seats):
            raise WrongCommand("launcher ssh", why="it needs the names of hosts", remedy="-H a:4,b:4")
        for file in {self.identity, self.config, *(seat.host.identity for seat in seats)} - {""}:
            if not Path(file).expanduser().is_file():
                raise WrongCommand(f"ssh: {file}", why="there is no such file")

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
        links = self.links(seats)
        output = Output(folder, sys.stdout, sys.stderr, prefix=prefix, on_line=on_line)
        job = AgentJob(folder, output, links, seats, workers, silence=self.silence, remedy=remedy_for)
        job.begin(argv, passed_on(environ))
        return job

    def links(self, seats: Sequence[Seat]) -> list[AgentLink]:
        """Start one agent on every host."""
        links: list[AgentLink] = []
        try:
            for host in hosts_in(seats):
                ranks = [seat.rank for seat in seats if seat.host.name == host.name]
                links.append(AgentLink.started(host, ranks, self.command(host)))
        except BaseException:
            for link in links:
                link.kill()
            raise
        return links

    def command(self, host: Host) -> list[str]:
        """Return the command that starts the agent of a host."""
        words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT}"]
        port, identity, user = host.port or self.port, host.identity or self.identity, host.user or self.user
        words += ["-F", str(Path(self.config).expanduser())] if self.config else []
        words += ["-p", str(port)] if port else []
        words += ["-i", str(Path(identity).expanduser()), "-o", "IdentitiesOnly=yes"] if identity else []
        words += ["-l", user] if user else []
        return [*words, "--", host.address or host.name, agent_command(host, self.python, self.folder)]


def agent_command(host: Host, python: str = "", folder: str = "") -> str:
    """Return the command line for the shell of a host. Every word that a user wrote is quoted."""
    place, program = host.folder or folder or os.getcwd(), host.python or python or sys.executable
    path = os.environ.get("PYTHONPATH")
    setting = f"PYTHONPATH={shlex.quote(path)} " if path else ""
    return f"cd {shlex.quote(place)} && {setting}exec {shlex.quote(program)} -m paceline.cluster.agent"


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hosts get from the launcher."""
    return {
        name: value for name, value in environ.items() if (name.startswith(PASSED) or name in ALSO) and name not in OWN
    }


def remedy_for(link: AgentLink) -> str:
    text = f"{link.lost}\n{link.last_words}"
    return next(remedy for mark, remedy in REMEDIES.items() if mark in text).format(host=link.host.name)

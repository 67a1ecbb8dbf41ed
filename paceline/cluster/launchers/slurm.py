"""Start agents as steps of a Slurm allocation. Outside of an allocation, submit a batch script that does so.

    paceline run --launcher slurm -np 8 ...          on a login node: writes a script, submits it, shows its output
      sbatch script.sh
        paceline run --launcher slurm -np 8 ...      inside the allocation: one agent per node
          srun --nodelist=n1 python -m paceline.cluster.agent
          srun --nodelist=n2 python -m paceline.cluster.agent

A whole race runs in one allocation in the same way. Options of sbatch pass through: slurm(partition=gpu, time=30,
gres=gpu:4, options='--qos=low'). The script holds the command only, no environment and no secret.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from paceline.cluster.agent import SILENCE
from paceline.cluster.agent_job import AgentJob
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.launchers.local import check_command, prepare
from paceline.cluster.launchers.ssh import passed_on
from paceline.cluster.output import OnLine, Output
from paceline.cluster.seats import hosts_in
from paceline.errors import PacelineError, WrongCommand
from paceline.menu.menu import Member
from paceline.types import Host, Seat

PATIENCE = 120.0  # seconds for a step to start


# A shell ends at once by the signal of a preemption, unless it handles it; `wait` returns early when it does.
_AGAIN = """trap 'signaled=1; kill -TERM "$child" 2>/dev/null' TERM
{command} &
child=$!
test -z "$signaled" || kill -TERM "$child"
while :; do
    wait "$child"
    code=$?
    kill -0 "$child" 2>/dev/null || break
done
test "$code" -ne 143 || scontrol requeue "$SLURM_JOB_ID"
exit "$code"
"""


@dataclass(frozen=True)
class Slurm(Member):
    """Options for sbatch. They have no effect inside an allocation. `requeue` starts a preempted job again."""

    name: ClassVar[str] = "slurm"

    partition: str = ""
    account: str = ""
    time: str = ""
    nodes: int = 0
    gres: str = ""
    container: str = ""
    requeue: bool = False
    options: str = ""
    silence: float = SILENCE

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the nodes of the allocation that this process runs in; no nodes outside of an allocation."""
        return allocated(environ)

    def check(self, seats: Sequence[Seat]) -> None:
        if not inside(os.environ):
            raise WrongCommand(
                "launcher slurm",
                why="this process is in no allocation",
                remedy="paceline run --launcher slurm, which submits a script, or salloc first",
            )

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
        links = [
            AgentLink.started(
                host, [seat.rank for seat in seats if seat.host.name == host.name], self.command(host), env=environ
            )
            for host in hosts_in(seats)
        ]
        output = Output(folder, sys.stdout, sys.stderr, prefix=prefix, on_line=on_line)
        job = AgentJob(folder, output, links, seats, workers, silence=self.silence, patience=PATIENCE)
        job.begin(argv, passed_on(environ))
        return job

    def command(self, host: Host) -> list[str]:
        """Return the srun command that runs the agent of a node."""
        words = [
            "srun",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={host.name}",
            "--overlap",
            "--unbuffered",
            "--mpi=none",
        ]
        words += [f"--container={self.container}"] if self.container else []
        return [*words, "--export=ALL", host.python or sys.executable, "-m", "paceline.cluster.agent"]

    def script(self, command: Sequence[str], workers: int, log: Path) -> str:
        """Return the batch script that runs a command of paceline inside an allocation."""
        lines = ["--job-name=paceline", f"--ntasks={workers}", f"--output={log}", "--open-mode=append"]
        for name in ("partition", "account", "time", "gres"):
            if getattr(self, name):
                lines.append(f"--{name}={getattr(self, name)}")
        lines += [f"--nodes={self.nodes}"] if self.nodes else []
        lines += ["--requeue", "--signal=B:TERM@60"] if self.requeue else ["--no-requeue"]
        lines += shlex.split(self.options)
        for line in lines:
            if "\n" in line:
                raise WrongCommand(f"slurm: {line!r}", why="an option has one line")
        head = "".join(f"#SBATCH {line}\n" for line in lines)
        return f"#!/bin/sh\n{head}" + (_AGAIN if self.requeue else "exec {command}\n").format(
            command=shlex.join(command)
        )


def inside(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"))


def allocated(environ: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the nodes of an allocation with their number of tasks."""
    if not inside(environ):
        return ()
    names = _names(environ["SLURM_JOB_NODELIST"], environ)
    counts = numbers_of(environ.get("SLURM_TASKS_PER_NODE") or environ.get("SLURM_JOB_CPUS_PER_NODE") or "1")
    counts += [counts[-1]] * (len(names) - len(counts))
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=False))


def numbers_of(text: str) -> list[int]:
    """Parse Slurm's list of counts: `2(x3),1` becomes [2, 2, 2, 1]."""
    result: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:\(x(\d{1,6})\))?", part.strip())
        if match is None:
            raise WrongCommand(f"SLURM_TASKS_PER_NODE={text}", why="it is numbers such as 2(x3),1")
        result += [int(match[1])] * int(match[2] or 1)
    return result


def _names(text: str, environ: Mapping[str, str]) -> list[str]:
    if re.fullmatch(r"[\w.\-]+(,[\w.\-]+)*", text):
        return text.split(",")
    done = subprocess.run(
        ["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=False, env=dict(environ)
    )
    if done.returncode:
        raise PacelineError(f"scontrol show hostnames {text}", why=done.stderr.strip())
    return done.stdout.split()


def check_tools() -> None:
    for tool in ("sbatch", "squeue", "scontrol", "srun"):
        if shutil.which(tool) is None:
            raise WrongCommand("launcher slurm", why=f"there is no {tool} here", remedy="a login node of the cluster")

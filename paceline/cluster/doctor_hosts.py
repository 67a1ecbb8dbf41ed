"""Check every host of a cluster before a run: software, clock, interfaces, ports, shared folder and limits."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from paceline.cluster.agent_job import AgentJob
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.doctor import Finding
from paceline.cluster.facts import Facts, differences, facts
from paceline.cluster.launchers.ssh import Ssh, remedy_for
from paceline.cluster.output import Output
from paceline.cluster.seats import seats_on
from paceline.types import Host

APART = 2.0  # seconds; clocks that differ by more confuse logs and checkpoints
FEW_FILES = 4096  # open files; every pair of ranks uses some
SMALL = 1 << 30  # bytes of /dev/shm


def examine_hosts(hosts: Sequence[Host], launcher: Ssh) -> list[Finding]:
    """Start an agent on every host, return its findings, and end it. Raises if a host does not answer."""
    seats = seats_on(hosts)
    launcher.check(seats)
    with tempfile.TemporaryDirectory() as folder, _mark() as mark:
        output = Output(Path(folder), sys.stdout, sys.stderr, prefix=False)
        links = launcher.links(seats)
        with AgentJob(Path(folder), output, links, seats, len(seats), silence=30.0, remedy=remedy_for) as job:
            job.question(mark)
    here = facts()
    return [one for link in links for one in _of_host(link, here)]


@contextmanager
def _mark() -> Iterator[str]:
    """Yield the path of a temporary file in this folder, which hosts look for; "" if it cannot be written."""
    with ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".paceline-"))
            name = file.name
        except OSError:
            name = ""
        yield name


def _of_host(link: AgentLink, here: Facts) -> Iterator[Finding]:
    name, there = link.host.name, link.facts or Facts()
    apart = differences(name, here, there)
    software = f"paceline {there.paceline}, torch {there.torch or '(none)'}, Python {there.python}"
    yield Finding(f"{name}: software", "bad" if apart else "ok", "; ".join(apart) or software)
    yield Finding(f"{name}: cores, GPUs", "ok", f"{there.cores}, {there.gpus}")
    seconds = abs(there.clock - link.met)
    late = seconds > APART
    text = f"{seconds:.0f} s apart from this machine. try: a time service (chrony)" if late else "as on this machine"
    yield Finding(f"{name}: clock", "note" if late else "ok", text)
    yield from _network(name, link, there)
    yield from _limits(name, there)
    sees = link.answers.get("sees")
    text = f"{Path.cwd()} is shared" if sees else f"does not see files of {Path.cwd()}: records and data differ"
    yield Finding(f"{name}: folder", "ok" if sees else "note", text)


def _network(name: str, link: AgentLink, there: Facts) -> Iterator[Finding]:
    known = there.addresses or {}
    wanted = link.host.interface
    shown = ", ".join(f"{key} {value}" for key, value in known.items())
    lacking = bool(wanted) and wanted not in known
    yield Finding(
        f"{name}: interfaces", "bad" if lacking else "ok", f"no {wanted}; it has {shown}" if lacking else shown
    )
    problem = str(link.answers.get("problem", "it did not answer"))
    remedy = ". try: open the ports between the hosts"
    yield Finding(
        f"{name}: ports", "bad" if problem else "ok", problem + remedy if problem else "reaches the first host"
    )


def _limits(name: str, there: Facts) -> Iterator[Finding]:
    few = there.open_files < FEW_FILES
    text = f"{there.open_files:,}" + (f". try: ulimit -n {FEW_FILES}" if few else "")
    yield Finding(f"{name}: open files", "note" if few else "ok", text)
    small = there.shared_memory < SMALL
    text = f"{there.shared_memory / 1e9:.1f} GB free" + (". try: docker run --shm-size=8g" if small else "")
    yield Finding(f"{name}: /dev/shm", "note" if small else "ok", text)

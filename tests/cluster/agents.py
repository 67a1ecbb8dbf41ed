"""A launcher for tests: agents as child processes of this machine, one for each pretended host."""

import os
import sys
from dataclasses import dataclass

from paceline.cluster.launchers.ssh import Ssh
from paceline.cluster.seats import seats_on
from paceline.types import Host


@dataclass(frozen=True)
class Agents(Ssh):
    """The launcher ssh without ssh."""

    program: tuple[str, ...] = ()

    def command(self, host):
        return [*(self.program or (sys.executable, "-m")), "paceline.cluster.agent"]


def hosts(count):
    return [Host(name, address="127.0.0.1", interface="lo") for name in "abcdefgh"[:count]]


def start(folder, argv, each=1, count=2, launcher=None, **settings):
    """Start `each` ranks of argv on each of `count` pretended hosts."""
    seats = seats_on([host for host in hosts(count) for _ in range(each)])
    return (launcher or Agents()).start(
        argv,
        workers=len(seats),
        folder=folder,
        environ={**os.environ, "OMP_NUM_THREADS": "1"},
        prefix=True,
        seats=seats,
        **settings,
    )

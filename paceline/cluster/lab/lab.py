"""The settings of a lab: `lab(hosts=4, bandwidth=1gbit)`, `lab(hosts=4, bandwidth=1gbit, overlay=vxlan)`.

host 0        host 1        host 2        host 3       network namespaces
eth0 |        eth0 |        eth0 |        eth0 |       shaped where a host sends ...
     +------------ switch (a bridge) ----------+       ... and where the switch sends to it

With an overlay, ranks use a virtual network on top of this one, as containers often do: every host has an interface
vx0, whose packets travel inside UDP packets of eth0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import BadMember, UnknownName
from paceline.menu.grammar import parse
from paceline.menu.menu import Member, make
from paceline.types import Cluster

_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_MOST_HOSTS = 64
# Data in a full packet of 1514 bytes: 1448 bytes after headers of Ethernet, IP and TCP; vxlan takes 50 more.
OVERLAYS = {"none": 1448 / 1514, "vxlan": 1398 / 1514}


@dataclass(frozen=True)
class Lab(Member):
    """Settings of a lab. `bandwidth` limits every link in each direction, in the notation of tc."""

    name: ClassVar[str] = "lab"

    hosts: int = 4
    bandwidth: str = "1gbit"
    overlay: str = "none"

    def __post_init__(self) -> None:
        if self.overlay not in OVERLAYS:
            raise BadMember(
                f"lab(overlay={self.overlay})", why=f"it is {' or '.join(OVERLAYS)}", remedy="overlay=vxlan"
            )
        if not 1 <= self.hosts <= _MOST_HOSTS:
            raise BadMember(f"lab(hosts={self.hosts})", why=f"a lab has 1 to {_MOST_HOSTS} hosts")
        if self.bits_per_second < 1e5:
            raise BadMember(f"lab(bandwidth={self.bandwidth})", why="a link has at least 100kbit")

    @property
    def bits_per_second(self) -> float:
        written = re.fullmatch(r"(\d+(?:\.\d+)?)([a-z]+)", self.bandwidth)
        if written is None or written[2] not in _UNITS:
            raise BadMember(
                f"lab(bandwidth={self.bandwidth})",
                why="a bandwidth is a number with kbit, mbit or gbit (per second)",
                remedy="bandwidth=200mbit",
            )
        return float(written[1]) * _UNITS[written[2]]

    @property
    def bytes_per_second(self) -> float:
        return self.bits_per_second / 8

    @property
    def goodput(self) -> float:
        """Return the largest TCP rate in bytes per second: the bandwidth times the share of data in a full packet."""
        return self.bytes_per_second * OVERLAYS[self.overlay]

    def host_of(self, rank: int, workers: int) -> int:
        """Return the host of a rank. Consecutive workers share a host; servers are dealt to the hosts in turn."""
        if rank >= workers:
            return rank % self.hosts
        return rank if workers <= self.hosts else rank * self.hosts // workers

    def cluster(self, workers: int) -> Cluster:
        return Cluster(tuple(self.host_of(rank, workers) for rank in range(workers)))


def read_lab(text: str) -> Lab:
    spec = parse(text)
    if spec.word != Lab.name:
        raise UnknownName("lab", spec.word, [Lab.name])
    return make(Lab, spec)

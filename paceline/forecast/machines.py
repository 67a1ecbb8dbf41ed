"""The machines of a forecast as text: machines(nodes=16, ranks=8, device=V100, bandwidth=25gbit).

Figures that the text leaves out come from the library hardware.toml, which names its sources, and are reported as
assumptions. A number that needs a unit is refused without one.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import isfinite
from typing import Any, ClassVar

from paceline.errors import BadMember, UnknownName
from paceline.forecast.fabric import Fabric, Line
from paceline.menu.grammar import parse
from paceline.menu.menu import Member, make

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BANDWIDTHS = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "kB": 1e3, "MB": 1e6, "GB": 1e9}  # bytes per second
TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
MOST_RANKS = 1 << 16
PORT = "25gbit"  # the port of a node, if the text does not say


@dataclass(frozen=True)
class Machines(Member):
    """
    nodes, ranks       nodes, and devices of each
    device             one of the library
    network            one of the library; bandwidth and latency replace its figures
    bandwidth          of the port of a node: 25gbit, 3GB
    latency            of a message between nodes: 20us
    inside             bandwidth of a device inside its node: 150GB
    oversubscription   bandwidth of all ports, divided by that of the network behind them
    jitter             standard deviation of compute time, as a part of it
    slow, slowness     devices that are slower, and by which factor
    price              of a node for an hour
    comm               what moves bytes: nccl, gloo, tcp
    """

    name: ClassVar[str] = "machines"

    nodes: int = 1
    ranks: int = 8
    device: str = ""
    network: str = ""
    bandwidth: str = ""
    latency: str = ""
    inside: str = ""
    oversubscription: float = 1.0
    jitter: float = 0.0
    slow: int = 0
    slowness: float = 2.0
    price: float = 0.0
    comm: str = "nccl"

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks < 1 or self.nodes * self.ranks > MOST_RANKS:
            raise BadMember(f"{self}", why=f"there are 1 to {MOST_RANKS:,} devices in nodes", remedy="nodes=2, ranks=8")
        for field, least in (("oversubscription", 1), ("jitter", 0), ("slow", 0), ("slowness", 1), ("price", 0)):
            value = getattr(self, field)
            if not (isfinite(value) and value >= least):
                raise BadMember(f"machines({field}={value:g})", why=f"{field} is at least {least}")
        if self.comm not in ALGORITHMS:
            raise UnknownName("comm of machines", self.comm, ALGORITHMS)
        self.fabric()

    @property
    def hardware(self) -> dict[str, Any] | None:
        return entry("device", self.device) if self.device else None

    @property
    def wires(self) -> dict[str, Any] | None:
        return entry("network", self.network) if self.network else None

    def fabric(self) -> Fabric:
        wires, device = self.wires or {}, self.hardware or {}
        bandwidth = (
            read_bandwidth(self.bandwidth, "bandwidth")
            if self.bandwidth
            else wires.get("bandwidth") or read_bandwidth(PORT, "bandwidth")
        )
        latency = read_seconds(self.latency, "latency") if self.latency else wires.get("latency", LATENCY)
        inside = read_bandwidth(self.inside, "inside") if self.inside else device.get("inside", INSIDE)
        algorithm, scatter = ALGORITHMS[self.comm]
        return Fabric(
            nodes=self.nodes,
            ranks=self.ranks,
            inside=Line(library()["host_latency"], inside),
            between=Line(latency, bandwidth),
            algorithm=algorithm,
            scatter=scatter,
            call=CALLS[self.comm],
            oversubscription=self.oversubscription,
            incast=wires.get("incast", 0.0 if self.comm == "nccl" else 0.05),
            jitter=self.jitter,
            slow=self.slow,
            slowness=self.slowness if self.slow else 1.0,
        )

    def assumptions(self) -> list[str]:
        """Return every figure that the text leaves to the library or to a default, with its source."""
        lines = []
        if self.hardware:
            lines.append(f"device {self.device}: {self.hardware['source']}")
        if self.wires:
            lines.append(f"network {self.network}: {self.wires['source']}")
        fabric = self.fabric()
        if not (self.bandwidth or self.wires):
            lines.append(f"port of a node: {PORT}, because neither bandwidth nor network is given")
        if not (self.latency or self.wires):
            lines.append(f"latency between nodes: {fabric.between.latency * 1e6:g} us, because none is given")
        if not (self.inside or self.hardware):
            lines.append(f"inside a node: {INSIDE / 1e9:g} GB/s, because neither inside nor device is given")
        lines.append(f"comm {self.comm}: {HOW[self.comm]}; {CALLS[self.comm] * 1e6:g} us to start one, an assumption")
        return lines

    def with_bandwidth(self, nbytes: float) -> Machines:
        return replace(self, bandwidth=f"{nbytes / 1e6:.12g}MB")


LATENCY = 25e-6
INSIDE = 12e9  # bytes per second: PCI Express 3.0 x16 in practice
CALLS = {"nccl": 10e-6, "gloo": 100e-6, "tcp": 50e-6}  # seconds to start one operation
ALGORITHMS = {"nccl": ("tree", "ring"), "gloo": ("ring", "direct"), "tcp": ("ring", "ring")}
HOW = {
    "nccl": "sums travel as rings with the hops of a tree",
    "gloo": "sums travel as rings, reduce-scatters from everybody to everybody",
    "tcp": "sums travel as rings",
}


@cache
def library() -> dict[str, Any]:
    return tomllib.loads((files("paceline.forecast") / "hardware.toml").read_text())


def entry(kind: str, name: str) -> dict[str, Any]:
    known = library()[kind]
    if name not in known:
        raise UnknownName(kind, name, known)
    return dict(known[name])


def read_machines(text: str) -> Machines:
    spec = parse(text)
    if spec.word != Machines.name:
        raise UnknownName("machines", spec.word, [Machines.name])
    machines: Machines = make(Machines, spec)
    return machines


def read_bandwidth(text: str, what: str) -> float:
    """Return bytes per second."""
    return _with_unit(text, what, BANDWIDTHS, "25gbit")


def read_seconds(text: str, what: str) -> float:
    return _with_unit(text, what, TIMES, "20us")


def _with_unit(text: str, what: str, units: dict[str, float], example: str) -> float:
    written = re.fullmatch(r"(\d+(?:\.\d*)?(?:e-?\d+)?)([A-Za-z]*)", text)
    if written is None or written[2] not in units:
        lacks = written is not None and not written[2]
        why = "its unit is missing" if lacks else f"it is a number with {', '.join(units)}"
        raise BadMember(f"machines({what}={text})", why=why, remedy=f"{what}={example}")
    value = float(written[1]) * units[written[2]]
    if not (value > 0 and isfinite(value)):
        raise BadMember(f"machines({what}={text})", why="it is above 0", remedy=f"{what}={example}")
    return value

"""The network of a lab: namespaces, veth pairs, a bridge and htb, made with ip and tc.

Everything, including the switch, is in separate namespaces. The host does not see any of it, and removing the
namespaces removes all of it. Their names contain the owning process, so that the next command can remove what a
killed owner left behind.

htb shapes both ends of every link. `ceil` equals the rate, so that nothing is borrowed. The burst grows with the rate,
because kernel timers are coarse. The queue is short, so that TCP sees losses instead of seconds of delay. TCP uses
cubic, because with the default of some kernels (bbr) a shaped link has a different goodput.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from paceline.cluster.lab.lab import Lab
from paceline.cluster.owner import is_abandoned, owned_name
from paceline.cluster.seats import seats_on
from paceline.errors import PacelineError, WrongCommand
from paceline.types import Host, Place, Seat

NAMESPACES = Path("/run/netns")
PROBE = Path(__file__).with_name("probe.py")
INTERFACE = "eth0"
OVERLAY = "vx0"
CLOSE = 0.1  # largest relative deviation of a link from its rate
ATTEMPTS = 6  # measurements before this machine counts as too slow for a lab
PORT = 29400
_OURS = re.compile(r"paceline-\d+-\d+-\d+-[0-9a-f]{6}-(?:switch|\d+)")


class Network:
    """The network of a lab. It exists inside the with-block."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._name = owned_name()

    def __enter__(self) -> Network:
        check_tools()
        sweep()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        self._remove()

    # queries ------------------------------------------------------------------------------------

    @property
    def interface(self) -> str:
        """Return the name of the interface that ranks use for the exchange."""
        return INTERFACE if self.lab.overlay == "none" else OVERLAY

    def address(self, host: int) -> str:
        """Return the address of a host for the exchange."""
        return self.wire_address(host) if self.lab.overlay == "none" else f"10.78.0.{host + 1}"

    def wire_address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def namespace(self, host: int) -> str:
        return f"{self._name}-{host}"

    def prefix(self, host: int) -> tuple[str, ...]:
        """Return the command prefix that runs a program on a host."""
        return ("ip", "netns", "exec", self.namespace(host))

    def host(self, host: int) -> Host:
        return Host(f"host {host}", address=self.address(host), interface=self.interface)

    def seats(
        self, workers: int, servers: int = 0, place: Callable[[int], Place] = lambda rank: Place()
    ) -> tuple[Seat, ...]:
        """Return the seats of ranks on the hosts. A rank enters `place` first, because a lab hides control groups."""
        nodes = [self.lab.host_of(rank, workers) for rank in range(workers + servers)]
        return seats_on(
            [self.host(node) for node in nodes], lambda rank: Place(self.prefix(nodes[rank])).inside(place(rank))
        )

    def cut(self, host: int) -> None:
        """Take the link of a host down at the switch, as if its cable was pulled."""
        switch_port(f"{self._name}-switch", host, "down")

    def heal(self, host: int) -> None:
        """Put the link of a host up again."""
        switch_port(f"{self._name}-switch", host, "up")

    def received(self) -> list[int]:
        """Return the bytes that each host's interface has received so far."""
        return [self._counters(host)["rx"]["bytes"] for host in range(self.lab.hosts)]

    def sent(self) -> list[int]:
        return [self._counters(host)["tx"]["bytes"] for host in range(self.lab.hosts)]

    def _counters(self, host: int) -> dict[str, dict[str, int]]:
        words = ["-n", self.namespace(host), "-s", "-j", "link", "show", INTERFACE]
        interface = json.loads(_run(["ip", *words]))[0]
        return dict(interface.get("stats64") or interface["stats"])

    def settled_goodput(self, seconds: float) -> list[float]:
        """Measure until every link has its rate within 10 %. Raises if this machine is too slow for the lab.

        Other work on this machine can only slow links down, so the best of ATTEMPTS measurements counts.
        """
        best: list[float] = []
        for _ in range(ATTEMPTS):
            best = max(best, self.goodput(seconds), key=lambda rates: min(rates, default=0.0))
            if all(abs(rate / self.lab.goodput - 1) <= CLOSE for rate in best):
                return best
        worst = max(best, key=lambda rate: abs(rate / self.lab.goodput - 1))
        raise PacelineError(
            f"{self.lab} does not have the rate that it promises",
            why=f"TCP gets {worst / 1e6:.1f} MB/s of {self.lab.goodput / 1e6:.1f} MB/s while all hosts send; "
            f"this machine carries {8 * sum(best) / 1e9:.1f} Gbit/s in all",
            remedy="fewer hosts, a lower bandwidth, or a machine with nothing else to do",
        )

    def goodput(self, seconds: float = 1.0) -> list[float]:
        """Measure the bytes per second that each host receives over TCP from the previous one, all at the same time."""
        count = self.lab.hosts
        if count < 2:
            return []
        probes = [
            subprocess.Popen(
                [
                    *self.prefix(host),
                    *(sys.executable, "-I", "-S", str(PROBE)),
                    *(self.address(host), self.address((host + 1) % count), str(PORT), str(seconds)),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in range(count)
        ]
        try:
            answers = [probe.communicate(timeout=30 + 4 * seconds) for probe in probes]
        finally:
            for probe in probes:
                probe.kill()
                probe.communicate()
        for probe, (_, errors) in zip(probes, answers, strict=True):
            if probe.returncode:
                raise PacelineError("the lab's links could not be measured", why=_last_line(errors))
        return [float(answer) for answer, _ in answers]

    # setup --------------------------------------------------------------------------------------

    def _build(self) -> None:
        switch, hosts = f"{self._name}-switch", range(self.lab.hosts)
        _batch("ip", "", [f"netns add {name}" for name in (switch, *map(self.namespace, hosts))])
        _batch("ip", switch, ["link add switch type bridge forward_delay 0 mcast_snooping 0", "link set switch up"])
        for host in hosts:
            _batch("ip", switch, self._link(host))
            _batch("ip", self.namespace(host), self._ends(host))
            _batch("tc", self.namespace(host), shaping(INTERFACE, self.lab))
        _batch("tc", switch, [line for host in hosts for line in shaping(f"port{host}", self.lab)])
        if self.lab.overlay != "none":
            for host in hosts:
                _batch("ip", self.namespace(host), self._overlay(host))
                _batch("bridge", self.namespace(host), self._peers(host))

    def _link(self, host: int) -> list[str]:
        port = f"port{host}"
        return [
            f"link add {port} type veth peer name {INTERFACE} netns {self.namespace(host)}",
            f"link set {port} addrgenmode none master switch",
            f"link set {port} up",
        ]

    def _ends(self, host: int) -> list[str]:
        address = self.wire_address(host)
        return [
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none",
            f"address add {address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route change 10.77.0.0/24 dev {INTERFACE} proto kernel scope link src {address} congctl cubic",
        ]

    def _overlay(self, host: int) -> list[str]:
        address, own = self.address(host), self.wire_address(host)
        return [
            f"link add {OVERLAY} address {_hardware(host)} type vxlan id 77 dstport 4789 local {own} dev {INTERFACE} "
            "nolearning",
            f"link set {OVERLAY} addrgenmode none mtu 1450",
            f"address add {address}/24 dev {OVERLAY}",
            f"link set {OVERLAY} up",
            f"route change 10.78.0.0/24 dev {OVERLAY} proto kernel scope link src {address} congctl cubic",
        ]

    def _peers(self, host: int) -> list[str]:
        """Return bridge commands that send packets for a peer to its host alone, and broadcasts to all other hosts.

        There is no multicast. Packets for unknown interfaces go everywhere too, so every interface is listed.
        """
        peers = {peer: self.wire_address(peer) for peer in range(self.lab.hosts) if peer != host}
        known = [f"fdb add {_hardware(peer)} dev {OVERLAY} dst {address}" for peer, address in peers.items()]
        return known + [f"fdb append 00:00:00:00:00:00 dev {OVERLAY} dst {address}" for address in peers.values()]

    def _remove(self) -> None:
        _remove_all(name for name in _names() if name.startswith(self._name + "-"))


def _hardware(host: int) -> str:
    """Return the hardware address of a host's interface in the overlay."""
    return f"02:70:61:63:65:{host + 1:02x}"


def switch_port(switch: str, host: int, state: str) -> None:
    _batch("ip", switch, [f"link set port{host} {state}"])


def shaping(interface: str, lab: Lab) -> list[str]:
    """Return the tc commands for one end of a link."""
    rate = f"{lab.bits_per_second:.0f}bit"
    burst = "16kb" if lab.bits_per_second <= 2e8 else "32kb"
    return [
        f"qdisc add dev {interface} root handle 1: htb default 1",
        f"class add dev {interface} parent 1: classid 1:1 htb "
        f"rate {rate} ceil {rate} burst {burst} cburst {burst} quantum 60000",
        f"qdisc add dev {interface} parent 1:1 handle 10: pfifo limit 1000",
    ]


def running() -> list[str]:
    """Return the switches of the labs that run on this machine."""
    return [name for name in _names() if _OURS.fullmatch(name) and name.endswith("-switch") and not is_abandoned(name)]


def hosts_behind(switch: str) -> int:
    """Return the number of hosts of a running lab."""
    return sum(name.startswith(switch.removesuffix("switch")) for name in _names()) - 1


def set_link(host: int, state: str) -> str:
    """Cut ("down") or heal ("up") the link of a host in the running lab. Return the name of the lab.

    Raises WrongCommand unless exactly one lab runs.
    """
    check_tools()
    switches = running()
    if len(switches) != 1:
        what = "no lab is running" if not switches else f"{len(switches)} labs are running"
        raise WrongCommand(
            what, why="a link is cut in the one lab that runs", remedy="paceline lab --hosts 4 -- sleep 60"
        )
    count = hosts_behind(switches[0])
    if not 0 <= host < count:
        raise WrongCommand(f"host {host}", why=f"the lab has hosts 0 to {count - 1}")
    switch_port(switches[0], host, state)
    return switches[0].removesuffix("-switch")


def abandoned() -> list[str]:
    """Return the namespaces that labs of killed owners left behind."""
    return [name for name in _names() if _OURS.fullmatch(name) and is_abandoned(name)]


def sweep() -> None:
    """Remove the namespaces of killed owners, if this process is root."""
    if os.geteuid() == 0:
        _remove_all(abandoned())


def check_tools() -> None:
    if os.geteuid() != 0:
        raise WrongCommand("a lab", why="network namespaces need root", remedy="sudo, or docker run --privileged")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise WrongCommand(f"a lab needs {' and '.join(missing)}", remedy="apt-get install iproute2")


def _names() -> list[str]:
    try:
        return sorted(os.listdir(NAMESPACES))
    except OSError:
        return []


def _remove_all(names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    """Run several lines of ip or tc in one process inside a namespace."""
    inside = ["-n", namespace] if namespace else []
    _run([tool, *inside, "-batch", "-"], "\n".join(lines) + "\n")


def _run(words: Sequence[str], text: str = "") -> str:
    done = subprocess.run(list(words), input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PacelineError(
            "the lab could not be built",
            why=f"{' '.join(words)}: {_first_line(done.stderr)}",
            remedy="a kernel with network namespaces, veth, bridge and htb",
        )
    return done.stdout


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "no reason given")


def _last_line(text: str) -> str:
    return next(iter(reversed(text.strip().splitlines())), "no reason given")

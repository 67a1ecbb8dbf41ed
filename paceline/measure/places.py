"""The places where workers start: this host, hosts of a lab, or a share of a core. Everything is removed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from paceline.cluster.hosts import mapped, written
from paceline.cluster.lab.lab import read_lab
from paceline.cluster.lab.network import Network
from paceline.cluster.lab.quota import Quota
from paceline.cluster.launchers import MENU as LAUNCHERS
from paceline.cluster.launchers._launcher import Launcher
from paceline.cluster.seats import seats_on
from paceline.measure.record.figures import NetworkPart, RequestedNetwork
from paceline.run.compose.compose import servers_of
from paceline.run.run import Run, hosts_of
from paceline.types import HERE, Host, Place, Seat

SECONDS = 0.5  # for measuring the links of a lab before the workers start


@dataclass(frozen=True)
class Places:
    workers: int
    network: Network | None
    quota: Quota | None
    servers: int = 0
    hosts: tuple[Host, ...] = ()  # the host of each rank, if the user named hosts

    @property
    def seats(self) -> tuple[Seat, ...]:
        """Return one seat for each worker and server."""
        place = (lambda rank: Place()) if self.quota is None else self.quota.place
        if self.network is not None:
            return self.network.seats(self.workers, self.servers, place)
        if self.hosts:
            return seats_on(self.hosts, place)
        return seats_on([HERE] * (self.workers + self.servers), place)

    def measure(self) -> NetworkPart:
        """Return the requested network and the goodput of TCP in bytes per second; empty without a lab."""
        if self.network is None:
            return {}
        lab = self.network.lab
        requested: RequestedNetwork = {"lab": str(lab), "hosts": lab.hosts, "bandwidth": lab.bytes_per_second}
        return {"requested": requested, "goodput": self.network.settled_goodput(SECONDS)}


def launcher_of(run: Run) -> Launcher:
    """Return the launcher that a run names, or the one that its hosts need."""
    named = run.hosts or run.hostfile or run.cluster_file
    launcher: Launcher = LAUNCHERS.make(run.launcher or ("ssh" if named else "local"))
    return launcher


def for_workers(run: Run) -> Run:
    """Return the run for the workers.

    Files that name hosts exist only on this machine, so their content is put into the run.
    """
    hosts = hosts_of(run)
    if not hosts:
        return run
    names = [host.name for host in hosts]
    order = ",".join(str(names.index(host.name)) for host in mapped(hosts, run.workers, run.map_by))
    return run.with_(hosts=written(hosts), hostfile=None, cluster_file=None, map_by=order)


@contextmanager
def places_of(run: Run) -> Iterator[Places]:
    with ExitStack() as stack:
        servers = servers_of(run)
        network = stack.enter_context(Network(read_lab(run.lab))) if run.lab else None
        quota = stack.enter_context(Quota(run.cpus, run.workers + servers)) if run.cpus else None
        known = hosts_of(run)
        hosts = tuple(mapped(known, run.workers, run.map_by, servers)) if known else ()
        yield Places(run.workers, network, quota, servers, hosts)

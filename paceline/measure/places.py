"""Where the workers of a run start: on this host, on hosts of a lab, with a share of a core; all gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.cluster.lab.lab import read_lab
from paceline.cluster.lab.network import Network
from paceline.cluster.lab.quota import Quota
from paceline.run.compose.compose import servers_of
from paceline.run.run import Run
from paceline.types import Place

SECONDS = 0.5  # for measuring the links before the workers start


@dataclass(frozen=True)
class Places:
    workers: int
    network: Network | None
    quota: Quota | None

    def place(self, rank: int) -> Place:
        """A rank enters its control group first: inside a namespace of a lab the groups cannot be seen."""
        inner = Place() if self.network is None else self.network.place(rank, self.workers)
        return inner if self.quota is None else inner.inside(self.quota.place(rank))

    def measure(self) -> dict[str, Any]:
        """What was asked of the network and what TCP gets, both in bytes per second; nothing without a lab."""
        if self.network is None:
            return {}
        lab = self.network.lab
        asked = {"lab": str(lab), "hosts": lab.hosts, "bandwidth": lab.bytes_per_second}
        return {"requested": asked, "goodput": self.network.goodput(SECONDS)}


@contextmanager
def places_of(run: Run) -> Iterator[Places]:
    with ExitStack() as stack:
        network = stack.enter_context(Network(read_lab(run.lab))) if run.lab else None
        quota = stack.enter_context(Quota(run.cpus, run.workers + servers_of(run))) if run.cpus else None
        yield Places(run.workers, network, quota)

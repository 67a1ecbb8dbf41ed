"""The traits of an exchange, with the value that most exchanges have; a member overrides what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from paceline.menu.menu import Member
from paceline.types import Cluster

if TYPE_CHECKING:
    from paceline.protocols import Costed, Exchange, Priced, Topology


class ExchangeTraits(Member):
    """
    phases           phases of one chunk that the dispatcher lets leave one by one
    takes_topology   mixes with neighbors, which a topology defines
    asynchronous     uses the values that have arrived, without waiting for those of this step
    shares_results   writes results into one memory for all ranks of a host, if the comm has that
    one_call         a phase is one call of the comm, so that units may leave in any common order
    gathers          carries payloads that cannot be summed
    mixes_once       every rank mixes what it receives by itself, and rounds once
    weighs           mixes by weights that a user sets for a step: of each "rank" or each "node"; "" is none
    one_sum          a chunk is one sum of the comm, which a library may add in the dtype that travels
    by_owner         pieces go straight to their owners and back; the comm's own pattern for sums is not used
    """

    phases: ClassVar[int] = 1
    takes_topology: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    shares_results: ClassVar[bool] = False
    one_call: ClassVar[bool] = False
    gathers: ClassVar[bool] = False
    mixes_once: ClassVar[bool] = False
    one_sum: ClassVar[bool] = False
    by_owner: ClassVar[bool] = False

    @property
    def weighs(self) -> str:
        return ""

    @property
    def consensus(self) -> bool:
        """Return whether all ranks end with the same sum; otherwise each has its own weighted mean."""
        return True

    @property
    def servers(self) -> int:
        """Return the number of processes that it needs beside the workers."""
        return 0

    @property
    def dedicated(self) -> bool:
        """Return whether it has servers that own everything that is exchanged."""
        return False

    @property
    def topology(self) -> Topology | None:
        """Return the topology of an exchange among neighbors, or None if all ranks take part."""
        return None

    def with_topology(self, topology: Topology) -> Costed:
        """Return the same exchange with another topology, if it takes one."""
        return self  # type: ignore[return-value]

    def check(self, cluster: Cluster) -> None:
        """Refuse a cluster that does not fit; by default every cluster fits."""

    def decoupled(self) -> Exchange | None:
        """Return the same exchange in two phases, reduce-scatter and all-gather, or None if it has no such form."""
        return None

    def placing(self, cluster: Cluster) -> Priced:
        """Return the object that computes the traffic of a run's chunks, one after another."""
        return self  # type: ignore[return-value]

    def period(self, cluster: Cluster) -> int:
        """Return the steps after which traffic repeats."""
        return 1

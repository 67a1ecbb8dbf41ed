"""Every rank gets the sum over all ranks: each rank adds one of n parts, then all ranks read the n sums.

    rank 0   | A0 | B0 |   ->  | A0+A1 |       |  ->  | A0+A1 | B0+B1 |
    rank 1   | A1 | B1 |   ->  |       | B0+B1 |  ->  | A0+A1 | B0+B1 |

Every rank receives 2 (n-1)/n times the bytes of the chunk, which is the least possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm, Work
from paceline.protocols import Codec, Exchange, Payload
from paceline.strategy.exchanges._rounds import Fan, Fans
from paceline.strategy.exchanges._works import coded
from paceline.strategy.exchanges.traits import ExchangeTraits
from paceline.types import Chunk, Cluster, Lane, Mixing, Unit, View, spread

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AllReduce(ExchangeTraits):
    name: ClassVar[str] = "allreduce"
    shares_results: ClassVar[bool] = True
    one_call: ClassVar[bool] = True
    gathers: ClassVar[bool] = True
    one_sum: ClassVar[bool] = True

    def join(self, comm: Comm, view: View, lane: Lane) -> AllReduceChannel:
        return AllReduceChannel(comm)

    def decoupled(self) -> Exchange:
        """Return the exchange that computes the same sum in two phases, reduce-scatter and all-gather."""
        from paceline.strategy.exchanges._halves import Halves

        return Halves()

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Fans]:
        bounds = spread(nbytes, cluster.size, grain=64)
        parts = {rank: stop - start for rank, (start, stop) in enumerate(pairwise(bounds))}
        alike = dict.fromkeys(parts, 1)
        adding, reading = Fan(alike, parts), Fan(parts, alike)
        return [Fans([adding], cluster.nodes), Fans([reading], cluster.nodes)]


class AllReduceChannel:
    """The sum over a comm, of the chunk itself or of the payloads of a codec."""

    def __init__(self, comm: Comm) -> None:
        self._comm = self.memory = comm

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        if codec is None:
            return self._comm.all_sum(src, dst, unit)

        def combine(payload: Payload) -> Work:
            if payload.combine == "sum":
                return self._comm.all_sum(payload.tensor, payload.out, unit)
            if payload.combine == "gather":
                return self._comm.all_gather(payload.tensor, payload.out, unit)
            return self._comm.mix(payload.tensor, payload.out, handover(payload), unit)

        return coded(codec.rounds(chunk, src, dst), combine)

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def handover(payload: Payload) -> Mixing:
    """Return a mixing that only copies: a payload goes to one rank, and another comes from one rank."""
    targets = () if payload.target is None else (payload.target,)
    if payload.source is None:
        return Mixing(1.0, (), targets)
    return Mixing(0.0, ((payload.source, 1.0),), targets)

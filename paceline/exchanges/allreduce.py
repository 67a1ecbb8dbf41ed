"""Every rank gets the sum of all: each adds up one n-th, then all read the n parts.

    rank 0   | A0 | B0 |   ->  | A0+A1 |       |  ->  | A0+A1 | B0+B1 |
    rank 1   | A1 | B1 |   ->  |       | B0+B1 |  ->  | A0+A1 | B0+B1 |

Every rank receives 2 (n-1)/n times the bytes of the chunk, which is the least possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.menu import Member
from paceline.protocols import Codec, Comm, Payload, Rounds, Work
from paceline.types import Chunk, Cluster, Flow, Unit, View, spread

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AllReduce(Member):
    name: ClassVar[str] = "allreduce"
    consensus: ClassVar[bool] = True
    phases: ClassVar[int] = 1
    takes_topology: ClassVar[bool] = False

    def join(self, comm: Comm, view: View) -> AllReduceChannel:
        return AllReduceChannel(comm)

    def traffic(self, nbytes: int, cluster: Cluster) -> Sequence[Sequence[Flow]]:
        n = cluster.size
        bounds = spread(nbytes, n, grain=64)
        share = [bounds[k + 1] - bounds[k] for k in range(n)]
        pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
        adding = [Flow(src, dst, share[dst]) for src, dst in pairs]
        reading = [Flow(src, dst, share[src]) for src, dst in pairs]
        return [adding, reading]


class AllReduceChannel:
    """The sum over a comm, of the chunk itself or of what a codec makes of it."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        if codec is None:
            return self._comm.all_sum(src, dst, unit)
        return RoundsWork(codec.rounds(chunk, src, dst), self._comm, unit)

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class RoundsWork:
    """Drives a codec: each payload is combined, then the codec goes on, until it has written dst."""

    def __init__(self, rounds: Rounds, comm: Comm, unit: Unit) -> None:
        self._rounds, self._comm, self._unit = rounds, comm, unit
        self._work: Work | None = None
        self._next()

    def _next(self) -> None:
        payload = next(self._rounds, None)
        self._work = None if payload is None else self._combine(payload)

    def _combine(self, payload: Payload) -> Work:
        if payload.combine == "sum":
            return self._comm.all_sum(payload.tensor, payload.out, self._unit)
        return self._comm.all_gather(payload.tensor, payload.out, self._unit)

    def wait(self, deadline: float | None = None) -> None:
        while self._work is not None:
            self._work.wait(deadline)
            self._next()

    def done(self) -> bool:
        if self._work is not None and self._work.done():
            self._next()
        return self._work is None

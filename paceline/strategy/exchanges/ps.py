"""A parameter server: every piece of a chunk has an owner. All workers push to it, it adds, and all pull the sum.

    worker 0   | a0 | b0 | c0 |  --a0-->  server 0: a0 + a1  -->  | a | b | c |
    worker 1   | a1 | b1 | c1 |  --b1-->  server 1: b0 + b1  -->  | a | b | c |

ps(servers=2)                     two more processes, and workers own pieces too (see _placement.py for how much)
ps(servers=2, colocated=false)    all pieces on the two servers
ps                                no servers: every worker owns a part, as in reduce-scatter and all-gather
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm, Work
from paceline.errors import BadMember, WrongCommand
from paceline.protocols import Codec, Payload
from paceline.strategy.exchanges._placement import Placer, shares
from paceline.strategy.exchanges._rounds import Fan, Fans
from paceline.strategy.exchanges._works import coded
from paceline.strategy.exchanges.traits import ExchangeTraits
from paceline.types import Chunk, Cluster, Lane, Unit, View

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ps(ExchangeTraits):
    servers: int = 0
    colocated: bool = True

    name: ClassVar[str] = "ps"
    shares_results: ClassVar[bool] = True
    one_call: ClassVar[bool] = True
    by_owner: ClassVar[bool] = True

    @property
    def dedicated(self) -> bool:
        return self.servers > 0 and not self.colocated

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise BadMember(f"{self}", why="there cannot be fewer than no servers", remedy="ps(servers=1)")
        if not self.servers and not self.colocated:
            raise BadMember(f"{self}", why="nobody would own anything", remedy="ps(servers=1, colocated=false)")

    def check(self, cluster: Cluster) -> None:
        if self.servers > cluster.size:
            raise WrongCommand(
                f"exchange {self} with {cluster.size} workers",
                why="more servers than workers cannot help: each worker already has a server's bandwidth",
                remedy=f"ps(servers={cluster.size})",
            )

    def join(self, comm: Comm, view: View, lane: Lane) -> PsChannel:
        return PsChannel(service_of(self, comm), self.colocated)

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Fans]:
        """Return the traffic of one chunk. Servers count as ranks after the workers."""
        return self.placing(cluster).traffic(nbytes, cluster, step)

    def placing(self, cluster: Cluster) -> Placing:
        """Return the placement of the chunks of a run, one after another."""
        return Placing(Placer(shares(cluster.size, self.servers, self.colocated)))


class Placing:
    """Places every chunk on the ranks that own least so far, as in a run."""

    def __init__(self, placer: Placer) -> None:
        self._placer, self._count = placer, 0

    def traffic(self, nbytes: int, cluster: Cluster, step: int = 0) -> Sequence[Fans]:
        self._count += 1
        owned: Counter[int] = Counter()
        for piece in self._placer.pieces(self._count, nbytes, 1):
            owned[piece.owner] += piece.stop - piece.start
        workers = dict.fromkeys(range(cluster.size), 1)
        pushes, pulls = Fan(workers, owned), Fan(owned, workers)
        return [Fans([pushes], cluster.nodes), Fans([pulls], cluster.nodes)]


def service_of(exchange: Ps, comm: Comm) -> Any:
    """Return the connection to the servers that the run was started with, or one without servers."""
    from paceline.comm.service import Service

    started = comm.service.servers if comm.service is not None else 0
    if exchange.servers != started:
        raise WrongCommand(
            f"exchange {exchange}",
            why=f"this job was started with {started} server processes",
            remedy=f"paceline run --exchange '{exchange}' ...",
        )
    return comm.service if started else Service(comm, 0)


class PsChannel:
    """Sums each range on the process that owns it. Payloads of a codec are placed like chunks."""

    def __init__(self, service: Any, colocated: bool) -> None:
        self.memory = service
        self._lane = service.open_lane(colocated)
        self._placer = Placer(shares(service.size, service.servers, colocated))

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        if codec is None:
            return self._sum(unit, chunk, src, dst)

        def combine(payload: Payload) -> Work:
            return self._sum(unit, chunk, payload.tensor, payload.out)

        return coded(codec.rounds(chunk, src, dst), combine)

    def _sum(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor) -> Work:
        pieces = self._placer.pieces(chunk.index, src.numel(), src.itemsize)
        work: Work = self.memory.sum_by(src, dst, pieces, lane=self._lane, chunk=chunk.index, key=unit)
        return work

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass

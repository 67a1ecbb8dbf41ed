"""The flows of one round in compact form: among n ranks there may be n (n-1) flows.

    Fan(sources, targets)   every source sends to every target but itself, sources[s] x targets[t] bytes

        reduce-scatter      a rank receives its own part from every other rank      1 x part of the target
        all-gather          a rank receives the part of every other rank            part of the source x 1

    Edges(sources)          every rank receives the same bytes from each of its sources

The bytes that ranks receive are summed without listing flows, in time that grows with ranks and edges. Iterating over a
round lists its flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from paceline.types import Flow


@dataclass(frozen=True)
class Fan:
    """Flows from all `sources` to all `targets`, which are ranks, each with its factor of the bytes."""

    sources: Mapping[int, int]
    targets: Mapping[int, int]

    def __iter__(self) -> Iterator[Flow]:
        for target, factor in self.targets.items():
            for source, nbytes in self.sources.items():
                if source != target:
                    yield Flow(source, target, nbytes * factor)


@dataclass(frozen=True)
class Fans:
    """A round of fans. `nodes[r]` is the node of worker r; each server, a rank after the workers, has its own node."""

    fans: Sequence[Fan]
    nodes: Sequence[int]

    def __iter__(self) -> Iterator[Flow]:
        return chain.from_iterable(self.fans)

    def received(self) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        for fan in self.fans:
            total = sum(fan.sources.values())
            for target, factor in fan.targets.items():
                counts[target] += factor * (total - fan.sources.get(target, 0))
        return counts

    def crossing(self) -> Mapping[int, int]:
        counts: Counter[int] = Counter()
        for fan in self.fans:
            sent: Counter[int] = Counter()
            for source, nbytes in fan.sources.items():
                sent[self._node(source)] += nbytes
            total = sent.total()
            for target, factor in fan.targets.items():
                counts[target] += factor * (total - sent[self._node(target)])
        return counts

    def _node(self, rank: int) -> int:
        return self.nodes[rank] if rank < len(self.nodes) else ~rank


def within(groups: Iterable[Iterable[int]], nbytes: int, nodes: Sequence[int]) -> Fans:
    """Return the round in which every rank receives `nbytes` from every other rank of its group."""
    fans = [Fan(dict.fromkeys(group, 1), dict.fromkeys(group, nbytes)) for group in map(list, groups)]
    return Fans(fans, nodes)


@dataclass(frozen=True)
class Edges:
    """A graph: `sources[r]` are the ranks from which rank r receives. Many rounds may use the same edges."""

    sources: Mapping[int, Sequence[int]]
    nodes: Sequence[int]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]], nodes: Sequence[int]) -> Edges:
        """Make edges from pairs of a source and a target."""
        sources: dict[int, list[int]] = {}
        for source, target in pairs:
            sources.setdefault(target, []).append(source)
        return cls(sources, nodes)

    @cached_property
    def heard(self) -> Mapping[int, int]:
        """The number of ranks from which each rank receives."""
        return {rank: len(sources) for rank, sources in self.sources.items()}

    @cached_property
    def heard_across(self) -> Mapping[int, int]:
        """The number of ranks on other nodes from which each rank receives."""
        nodes = self.nodes
        return {rank: sum(nodes[source] != nodes[rank] for source in sources) for rank, sources in self.sources.items()}


@dataclass(frozen=True)
class Along:
    """A round in which `nbytes` travel along every edge."""

    edges: Edges
    nbytes: int

    def __iter__(self) -> Iterator[Flow]:
        for rank, sources in self.edges.sources.items():
            for source in sources:
                yield Flow(source, rank, self.nbytes)

    def received(self) -> Mapping[int, int]:
        return {rank: self.nbytes * count for rank, count in self.edges.heard.items()}

    def crossing(self) -> Mapping[int, int]:
        return {rank: self.nbytes * count for rank, count in self.edges.heard_across.items()}

"""Patterns of collectives: which range of a vector each rank sends to which rank, step by step. No sockets, no torch.

    ring          4 ranks, 4 blocks: a block travels around and grows, then the finished block travels around again

        step 0    rank 0 --block 3--> rank 1 --block 0--> rank 2 --block 1--> rank 3 --block 2--> rank 0
        step 1    rank 0 --block 2--> rank 1 --block 3--> ...

A pattern is a generator of `Step`; every rank runs its own. Step k of one rank matches step k of every other rank, so
all ranks yield the same number of steps. A rank holds a vector; a step sends ranges of it and receives into ranges:

    adds      the range becomes the sum of the local and all received values, added in rank order
    else      the range becomes the received values

comm/tcp runs these steps, and the forecast counts their bytes. A test checks that every rank ends with the right
vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from paceline.types import Flow, Link, spread


class Message(NamedTuple):
    """The range [start, stop) of a vector, in elements, and the rank that it goes to or comes from."""

    peer: int
    start: int
    stop: int


class Step(NamedTuple):
    """Messages that may be under way at once. A send only has to wait for earlier receives into its own range."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()
    adds: bool = False


Steps = Iterator[Step]
Pattern = Callable[[int], Steps]  # the steps of a rank
Bounds = Sequence[int]  # where a vector is cut into blocks, one for each rank: size + 1 numbers

# rings: every link carries the same bytes, and no rank receives from two ranks at once


def ring_sum(rank: int, bounds: Bounds) -> Steps:
    """Yield the steps of a sum: a ring reduce-scatter, then a ring all-gather. Every rank ends with the sum."""
    yield from ring_reduce_scatter(rank, bounds)
    yield from ring_all_gather(rank, bounds)


def ring_reduce_scatter(rank: int, bounds: Bounds) -> Steps:
    """Yield the steps of a ring reduce-scatter. Rank r ends with block r of the sum."""
    size = len(bounds) - 1
    for k in range(size - 1):
        yield _around(rank, bounds, (rank - 1 - k) % size, (rank - 2 - k) % size, adds=True)


def ring_all_gather(rank: int, bounds: Bounds) -> Steps:
    """Yield the steps of a ring all-gather. Rank r begins with block r; every rank ends with all blocks."""
    size = len(bounds) - 1
    for k in range(size - 1):
        yield _around(rank, bounds, (rank - k) % size, (rank - 1 - k) % size, adds=False)


def _around(rank: int, bounds: Bounds, sent: int, heard: int, *, adds: bool) -> Step:
    size = len(bounds) - 1
    after, before = (rank + 1) % size, (rank - 1) % size
    return Step(
        (Message(after, bounds[sent], bounds[sent + 1]),), (Message(before, bounds[heard], bounds[heard + 1]),), adds
    )


# everybody to everybody: one round, for messages that cost latency rather than bandwidth


def direct_sum(rank: int, size: int, numel: int) -> Steps:
    """Yield one step: every rank sends its whole vector to all others, and adds all vectors in rank order."""
    if size > 1:
        everybody = tuple(Message(peer, 0, numel) for peer in _others(rank, size))
        yield Step(everybody, everybody, adds=True)


def direct_reduce_scatter(rank: int, bounds: Bounds) -> Steps:
    """Yield one step: every rank sends block r to rank r, and adds what it receives for its own block."""
    others = _others(rank, len(bounds) - 1)
    if others:
        low, high = bounds[rank], bounds[rank + 1]
        sends = tuple(Message(peer, bounds[peer], bounds[peer + 1]) for peer in others)
        yield Step(sends, tuple(Message(peer, low, high) for peer in others), adds=True)


def direct_all_gather(rank: int, bounds: Bounds) -> Steps:
    """Yield one step: every rank sends its block to all others."""
    others = _others(rank, len(bounds) - 1)
    if others:
        low, high = bounds[rank], bounds[rank + 1]
        receives = tuple(Message(peer, bounds[peer], bounds[peer + 1]) for peer in others)
        yield Step(tuple(Message(peer, low, high) for peer in others), receives)


def two_rounds(rank: int, bounds: Bounds) -> Steps:
    """Yield the two steps of a sum as in shm: each rank adds its block of all vectors; then blocks are gathered."""
    yield from direct_reduce_scatter(rank, bounds)
    yield from direct_all_gather(rank, bounds)


# pairs: as few rounds as possible


def doubling_sum(rank: int, size: int, numel: int) -> Steps:
    """Yield recursive doubling: in round k, ranks that differ in bit k exchange and add whole vectors."""
    yield from _folded(rank, size, numel, lambda half: _doubling(rank, half, numel))


def halving_sum(rank: int, size: int, numel: int) -> Steps:
    """Yield recursive halving and doubling: pairs exchange and add ever smaller halves, then gather them back."""
    yield from _folded(rank, size, numel, lambda half: _halving(rank, half, numel))


def _doubling(rank: int, size: int, numel: int) -> Steps:
    for bit in _bits(size):
        whole = (Message(rank ^ bit, 0, numel),)
        yield Step(whole, whole, adds=True)


def _halving(rank: int, size: int, numel: int) -> Steps:
    """Yield the steps for 2^k ranks. In each, one bit of the rank selects the half that it keeps and adds up."""
    low, high, path = 0, numel, []
    for bit in reversed(_bits(size)):
        middle = (low + high) // 2
        kept, sent = ((middle, high), (low, middle)) if rank & bit else ((low, middle), (middle, high))
        path.append((rank ^ bit, kept, sent))
        yield Step((Message(rank ^ bit, *sent),), (Message(rank ^ bit, *kept),), adds=True)
        low, high = kept
    for peer, kept, sent in reversed(path):
        yield Step((Message(peer, *kept),), (Message(peer, *sent),))


def _folded(rank: int, size: int, numel: int, among: Callable[[int], Steps]) -> Steps:
    """Extend a pattern for 2^k ranks to any size. An extra rank sends its vector to a partner and gets the sum."""
    if size < 2:
        return
    half = 1 << (size.bit_length() - 1)
    if half == size:
        yield from among(size)
        return
    spare = rank >= half
    partner = rank - half if spare else rank + half
    whole = (Message(partner, 0, numel),) if partner < size else ()
    yield Step(whole, (), adds=True) if spare else Step((), whole, adds=True)
    yield from ([Step()] * _length(among, half) if spare else among(half))
    yield Step((), whole) if spare else Step(whole)


def _length(among: Callable[[int], Steps], half: int) -> int:
    return sum(1 for _ in among(half))


def _bits(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]


# from one rank


def tree_broadcast(rank: int, size: int, numel: int, root: int = 0) -> Steps:
    """Yield a binomial tree: every rank that has the vector sends it on, so the holders double in every step."""
    place = (rank - root) % size
    for bit in _bits(size):
        sends = place < bit and place + bit < size
        receives = bit <= place < 2 * bit
        yield Step(
            (Message((rank + bit) % size, 0, numel),) if sends else (),
            (Message((rank - bit) % size, 0, numel),) if receives else (),
        )


def chain_broadcast(rank: int, size: int, numel: int, root: int = 0) -> Steps:
    """Yield a chain: each rank sends the vector to the next. In segments it takes hardly longer than one message."""
    place = (rank - root) % size
    for k in range(size - 1):
        yield Step(
            (Message((rank + 1) % size, 0, numel),) if place == k else (),
            (Message((rank - 1) % size, 0, numel),) if place == k + 1 else (),
        )


# among some


def neighbors(numel: int, sources: Sequence[int], targets: Sequence[int]) -> Steps:
    """Yield one step: send the whole vector to all targets and receive from all sources. The caller applies weights."""
    yield Step(tuple(Message(peer, 0, numel) for peer in targets), tuple(Message(peer, 0, numel) for peer in sources))


def levels_sum(rank: int, dimensions: Sequence[int], numel: int) -> Steps:
    """Yield a sum by levels. Ring reduce-scatters go from the inner to the outer level, ring all-gathers go back."""
    low, stride, climbed = 0, 1, []
    length = numel
    for size in dimensions:
        first = rank - rank // stride % size * stride
        group = [first + k * stride for k in range(size)]
        place = group.index(rank)
        bounds = [low + cut for cut in spread(length, size)]
        climbed.append((place, bounds, group))
        yield from _renamed(ring_reduce_scatter(place, bounds), group)
        low, length, stride = bounds[place], bounds[place + 1] - bounds[place], stride * size
    for place, bounds, group in reversed(climbed):
        yield from _renamed(ring_all_gather(place, bounds), group)


def _renamed(steps: Steps, group: Sequence[int]) -> Steps:
    for sends, receives, adds in steps:
        yield Step(
            tuple(message._replace(peer=group[message.peer]) for message in sends),
            tuple(message._replace(peer=group[message.peer]) for message in receives),
            adds,
        )


def _others(rank: int, size: int) -> list[int]:
    """Return all other ranks, starting with the next one, so that not all ranks send to rank 0 at the same time."""
    return [(rank + k) % size for k in range(1, size)]


# what a pattern costs


def in_segments(steps: Iterable[Step], longest: int) -> Steps:
    """Cut messages into segments of at most `longest` elements. A segment can be sent on before the next arrives.

    Both ends know the range of a message, so they cut it in the same way. Afterwards, step k of one rank need not match
    step k of another; the messages of a pair of ranks still match by their order.
    """
    for sends, receives, adds in steps:
        out, back = ([_cut(message, longest) for message in messages] for messages in (sends, receives))
        for k in range(max(map(len, (*out, *back)), default=0)):
            yield Step(
                tuple(parts[k] for parts in out if k < len(parts)),
                tuple(parts[k] for parts in back if k < len(parts)),
                adds,
            )


def _cut(message: Message, longest: int) -> list[Message]:
    peer, start, stop = message
    cuts = [*range(start, stop, longest), stop]
    return [Message(peer, low, high) for low, high in pairwise(cuts)]


def flows(pattern: Pattern, size: int, itemsize: int = 1) -> Iterator[list[Flow]]:
    """Yield the flows of every round among `size` ranks; empty messages are left out."""
    for together in zip(*(pattern(rank) for rank in range(size)), strict=True):
        yield [
            Flow(rank, message.peer, (message.stop - message.start) * itemsize)
            for rank, step in enumerate(together)
            for message in step.sends
            if message.stop > message.start
        ]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a collective if every rank has one port: rounds of latency, and bytes through the busiest port."""

    rounds: int
    nbytes: float

    def seconds(self, link: Link) -> float:
        return self.rounds * link.latency + self.nbytes / link.bandwidth


def cost(pattern: Pattern, size: int, itemsize: int = 1) -> Cost:
    """Count the rounds, and sum over rounds the bytes into or out of the busiest rank."""
    rounds, nbytes = 0, 0
    for round_flows in flows(pattern, size, itemsize):
        into, out = [0] * size, [0] * size
        for flow in round_flows:
            out[flow.src] += flow.nbytes
            into[flow.dst] += flow.nbytes
        rounds, nbytes = rounds + 1, nbytes + max(*into, *out)
    return Cost(rounds, nbytes)


def ring_cost(size: int, nbytes: float, passes: int = 2) -> Cost:
    """Return the cost of a ring by formula: 2 passes for a sum, 1 for a reduce-scatter or an all-gather."""
    return Cost(passes * (size - 1), passes * nbytes * (size - 1) / size)


def direct_cost(size: int, nbytes: float) -> Cost:
    """Return the cost of direct_sum by formula."""
    return Cost(min(1, size - 1), nbytes * (size - 1))


def two_rounds_cost(size: int, nbytes: float) -> Cost:
    """Return the cost of two_rounds by formula."""
    return Cost(2 * min(1, size - 1), 2 * nbytes * (size - 1) / size)


def doubling_cost(size: int, nbytes: float) -> Cost:
    """Return the cost of doubling_sum by formula. A size that is no power of two costs two more rounds."""
    if size < 2:
        return Cost(0, 0)
    depth = size.bit_length() - 1
    rounds = depth + (0 if size == 1 << depth else 2)
    return Cost(rounds, rounds * nbytes)


def levels_cost(dimensions: Sequence[int], nbytes: float) -> Cost:
    """Return the cost of levels_sum by formula, if all ports are equal."""
    rounds, total, length = 0, 0.0, nbytes
    for size in dimensions:
        level = ring_cost(size, length)
        rounds, total, length = rounds + level.rounds, total + level.nbytes, length / size
    return Cost(rounds, total)


def tree_cost(size: int, nbytes: float) -> Cost:
    """Return the cost of tree_broadcast by formula."""
    depth = math.ceil(math.log2(size)) if size > 1 else 0
    return Cost(depth, depth * nbytes)

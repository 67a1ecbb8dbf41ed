"""Patterns of collectives: which rank sends which range of a vector where, step by step, without sockets or torch.

    ring          4 ranks, 4 blocks: a block travels around and grows, then the finished block travels around again

        step 0    rank 0 --block 3--> rank 1 --block 0--> rank 2 --block 1--> rank 3 --block 2--> rank 0
        step 1    rank 0 --block 2--> rank 1 --block 3--> ...

A pattern is a generator of `Step`, one for each rank. Step k of one rank belongs to step k of every other, so every
rank yields equally many. A rank holds a vector; a step sends ranges of it and receives into ranges of it:

    adds      the range becomes the sum of what this rank holds and of what it receives, in rank order
    else      the range becomes what it receives

comm/tcp runs these steps, the forecast counts their bytes, and a law checks that every rank ends with the right vector.
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
    """Messages that may be under way at once. A send needs the earlier receives in its range only."""

    sends: tuple[Message, ...] = ()
    receives: tuple[Message, ...] = ()
    adds: bool = False


Steps = Iterator[Step]
Pattern = Callable[[int], Steps]  # the steps of a rank
Bounds = Sequence[int]  # where a vector is cut into blocks, one for each rank: size + 1 numbers

# rings: every link carries the same bytes, and no rank hears from two at once


def ring_sum(rank: int, bounds: Bounds) -> Steps:
    """Every rank ends with the sum: the ring of a reduce-scatter, then that of an all-gather."""
    yield from ring_reduce_scatter(rank, bounds)
    yield from ring_all_gather(rank, bounds)


def ring_reduce_scatter(rank: int, bounds: Bounds) -> Steps:
    """Rank r ends with block r of the sum."""
    size = len(bounds) - 1
    for k in range(size - 1):
        yield _around(rank, bounds, (rank - 1 - k) % size, (rank - 2 - k) % size, adds=True)


def ring_all_gather(rank: int, bounds: Bounds) -> Steps:
    """Rank r begins with block r; every rank ends with all blocks."""
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
    """Every rank sends its whole vector to all others, and adds all in rank order."""
    if size > 1:
        everybody = tuple(Message(peer, 0, numel) for peer in _others(rank, size))
        yield Step(everybody, everybody, adds=True)


def direct_reduce_scatter(rank: int, bounds: Bounds) -> Steps:
    """Every rank sends each other rank the block of that rank."""
    others = _others(rank, len(bounds) - 1)
    if others:
        low, high = bounds[rank], bounds[rank + 1]
        sends = tuple(Message(peer, bounds[peer], bounds[peer + 1]) for peer in others)
        yield Step(sends, tuple(Message(peer, low, high) for peer in others), adds=True)


def direct_all_gather(rank: int, bounds: Bounds) -> Steps:
    """Every rank sends its block to all others."""
    others = _others(rank, len(bounds) - 1)
    if others:
        low, high = bounds[rank], bounds[rank + 1]
        receives = tuple(Message(peer, bounds[peer], bounds[peer + 1]) for peer in others)
        yield Step(tuple(Message(peer, low, high) for peer in others), receives)


def two_rounds(rank: int, bounds: Bounds) -> Steps:
    """The sum as shm makes it: every rank adds up its block of all sources, then reads the blocks of the others."""
    yield from direct_reduce_scatter(rank, bounds)
    yield from direct_all_gather(rank, bounds)


# pairs: as few rounds as possible


def doubling_sum(rank: int, size: int, numel: int) -> Steps:
    """Recursive doubling: in round k, ranks that differ in bit k exchange and add whole vectors."""
    yield from _folded(rank, size, numel, lambda half: _doubling(rank, half, numel))


def halving_sum(rank: int, size: int, numel: int) -> Steps:
    """Recursive halving, then doubling: pairs exchange and add halves of a range that shrinks, and gather it back."""
    yield from _folded(rank, size, numel, lambda half: _halving(rank, half, numel))


def _doubling(rank: int, size: int, numel: int) -> Steps:
    for bit in _bits(size):
        whole = (Message(rank ^ bit, 0, numel),)
        yield Step(whole, whole, adds=True)


def _halving(rank: int, size: int, numel: int) -> Steps:
    """A rank keeps the half of its bit, so that ranges of all ranks tile the vector at every depth."""
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
    """Run a pattern of a power of two ranks: those above it send their vector to a partner, and get the sum from it."""
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
    """Binomial tree: whoever has the vector sends it on, so that the number of holders doubles in every step."""
    place = (rank - root) % size
    for bit in _bits(size):
        sends = place < bit and place + bit < size
        receives = bit <= place < 2 * bit
        yield Step(
            (Message((rank + bit) % size, 0, numel),) if sends else (),
            (Message((rank - bit) % size, 0, numel),) if receives else (),
        )


def chain_broadcast(rank: int, size: int, numel: int, root: int = 0) -> Steps:
    """One rank after another: cut into segments it takes hardly longer than one message, whatever the size."""
    place = (rank - root) % size
    for k in range(size - 1):
        yield Step(
            (Message((rank + 1) % size, 0, numel),) if place == k else (),
            (Message((rank - 1) % size, 0, numel),) if place == k + 1 else (),
        )


# among some


def neighbors(numel: int, sources: Sequence[int], targets: Sequence[int]) -> Steps:
    """Send the whole vector to targets and hear from sources; the receiver weighs what it hears."""
    yield Step(tuple(Message(peer, 0, numel) for peer in targets), tuple(Message(peer, 0, numel) for peer in sources))


def levels_sum(rank: int, dimensions: Sequence[int], numel: int) -> Steps:
    """The sum by levels, innermost first: rings of reduce-scatters on ranges that shrink, then of all-gathers back."""
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
    """Return all other ranks, the next one first, so that not all ranks send to rank 0 at the same moment."""
    return [(rank + k) % size for k in range(1, size)]


# what a pattern costs


def in_segments(steps: Iterable[Step], longest: int) -> Steps:
    """Cut messages into segments of at most `longest` elements, so that a segment goes on before the next arrives.

    Both ends cut a message alike, because they know its range. Steps of different ranks no longer correspond by
    number; messages of a pair still do by order.
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
    """What a collective needs on ranks with one port each: rounds of latency, and bytes through the busiest port."""

    rounds: int
    nbytes: float

    def seconds(self, link: Link) -> float:
        return self.rounds * link.latency + self.nbytes / link.bandwidth


def cost(pattern: Pattern, size: int, itemsize: int = 1) -> Cost:
    """Count rounds, and bytes in or out of the busiest rank of every round."""
    rounds, nbytes = 0, 0
    for round_flows in flows(pattern, size, itemsize):
        into, out = [0] * size, [0] * size
        for flow in round_flows:
            out[flow.src] += flow.nbytes
            into[flow.dst] += flow.nbytes
        rounds, nbytes = rounds + 1, nbytes + max(*into, *out)
    return Cost(rounds, nbytes)


def ring_cost(size: int, nbytes: float, passes: int = 2) -> Cost:
    """The cost of a ring without listing its steps: 2 passes for a sum, 1 for a reduce-scatter or an all-gather."""
    return Cost(passes * (size - 1), passes * nbytes * (size - 1) / size)


def direct_cost(size: int, nbytes: float) -> Cost:
    """The cost of direct_sum without listing its steps."""
    return Cost(min(1, size - 1), nbytes * (size - 1))


def two_rounds_cost(size: int, nbytes: float) -> Cost:
    """The cost of two_rounds without listing its steps."""
    return Cost(2 * min(1, size - 1), 2 * nbytes * (size - 1) / size)


def doubling_cost(size: int, nbytes: float) -> Cost:
    """The cost of doubling_sum without listing its steps; two rounds more where the size is no power of two."""
    if size < 2:
        return Cost(0, 0)
    depth = size.bit_length() - 1
    rounds = depth + (0 if size == 1 << depth else 2)
    return Cost(rounds, rounds * nbytes)


def levels_cost(dimensions: Sequence[int], nbytes: float) -> Cost:
    """The cost of levels_sum on equal ports without listing its steps."""
    rounds, total, length = 0, 0.0, nbytes
    for size in dimensions:
        level = ring_cost(size, length)
        rounds, total, length = rounds + level.rounds, total + level.nbytes, length / size
    return Cost(rounds, total)


def tree_cost(size: int, nbytes: float) -> Cost:
    """The cost of tree_broadcast without listing its steps."""
    depth = math.ceil(math.log2(size)) if size > 1 else 0
    return Cost(depth, depth * nbytes)

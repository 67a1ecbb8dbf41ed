"""The program of one rank for a pattern: ordered messages for each peer, and the step that each message waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from paceline.comm import patterns
from paceline.comm.patterns import Step
from paceline.types import Piece, spread

SEGMENT = 1 << 18  # bytes; a segment is added and sent on while the next one arrives
SMALL = 1 << 16  # bytes up to which latency counts more than bandwidth
CROWD = 8  # number of ranks from which recursive doubling beats sending to everybody


class Outgoing(NamedTuple):
    """A range to send from the result after step `after` has written it; with -1, from the source at once."""

    start: int
    stop: int
    after: int


class Incoming(NamedTuple):
    """A range to receive in step `step`."""

    start: int
    stop: int
    step: int


class ProgramStep(NamedTuple):
    """One step: how many messages it receives, whether they are added, and which earlier step wrote the range (or -1).

    The result of that earlier step is sent on before this step changes the range.
    """

    receives: int
    adds: bool
    before: int


class Program(NamedTuple):
    outgoing: dict[int, tuple[Outgoing, ...]]
    incoming: dict[int, tuple[Incoming, ...]]
    stages: tuple[ProgramStep, ...]

    def unsent(self) -> list[int]:
        """Return for each step how many messages have to be sent after it."""
        counts = [0] * len(self.stages)
        for message in chain.from_iterable(self.outgoing.values()):
            if message.after >= 0:
                counts[message.after] += 1
        return counts


def compiled(steps: Iterable[Step]) -> Program:
    """Compile steps into a program. A range that is sent on must have the bounds with which it was received."""
    outgoing: dict[int, list[Outgoing]] = {}
    incoming: dict[int, list[Incoming]] = {}
    stages: list[ProgramStep] = []
    written: dict[tuple[int, int], int] = {}
    for number, step in enumerate(steps):
        for peer, start, stop in step.sends:
            if start < stop:
                outgoing.setdefault(peer, []).append(Outgoing(start, stop, written.get((start, stop), -1)))
        receives = [message for message in step.receives if message.start < message.stop]
        for peer, start, stop in receives:
            incoming.setdefault(peer, []).append(Incoming(start, stop, number))
        before = max((written.get((message.start, message.stop), -1) for message in receives), default=-1)
        stages.append(ProgramStep(len(receives), step.adds, before))
        written.update({(message.start, message.stop): number for message in receives})
    return Program(
        {peer: tuple(messages) for peer, messages in outgoing.items()},
        {peer: tuple(messages) for peer, messages in incoming.items()},
        tuple(stages),
    )


def sum_steps(rank: int, size: int, numel: int, itemsize: int) -> Iterable[Step]:
    """Return the steps of a sum. The pattern depends on the number of bytes and ranks."""
    if numel * itemsize > SMALL:
        return patterns.ring_sum(rank, spread(numel, size, grain=max(1, 64 // itemsize)))
    if size < CROWD:
        return patterns.direct_sum(rank, size, numel)
    return patterns.doubling_sum(rank, size, numel)


def gather_steps(rank: int, size: int, numel: int, itemsize: int) -> Iterable[Step]:
    """Return the steps of an all-gather. `numel` is the length of one rank's row."""
    bounds = [numel * k for k in range(size + 1)]
    small = numel * size * itemsize <= SMALL
    return patterns.direct_all_gather(rank, bounds) if small else patterns.ring_all_gather(rank, bounds)


def scatter_steps(rank: int, size: int, numel: int, itemsize: int) -> Iterable[Step]:
    bounds = spread(numel, size)
    small = numel * itemsize <= SMALL
    return patterns.direct_reduce_scatter(rank, bounds) if small else patterns.ring_reduce_scatter(rank, bounds)


def broadcast_steps(rank: int, size: int, numel: int, itemsize: int, root: int) -> Iterable[Step]:
    pattern = patterns.tree_broadcast if numel * itemsize <= SMALL else patterns.chain_broadcast
    return pattern(rank, size, numel, root)


def mix_steps(
    rank: int, size: int, numel: int, itemsize: int, sources: tuple[int, ...], targets: tuple[int, ...], adds: bool
) -> Iterable[Step]:
    return (step._replace(adds=adds) for step in patterns.neighbors(numel, sources, targets))


def owner_steps(
    rank: int, size: int, numel: int, itemsize: int, pieces: tuple[Piece, ...], givers: int
) -> Iterable[Step]:
    """Return the steps of sum_by: givers send each piece to its owner, which combines it and sends the result back."""
    others = [giver for giver in range(givers) if giver != rank]
    theirs = [piece for piece in pieces if piece.owner != rank and rank < givers]
    mine = [piece for piece in pieces if piece.owner == rank]
    for piece in theirs:
        yield Step((patterns.Message(*piece),))
    for _, start, stop in mine:  # a step for each piece, so that a piece is answered as soon as it is there
        yield Step((), tuple(patterns.Message(giver, start, stop) for giver in others), adds=True)
        yield Step(tuple(patterns.Message(giver, start, stop) for giver in others))
    for piece in theirs:
        yield Step((), (patterns.Message(*piece),))


Steps = Callable[..., Iterable[Step]]


@lru_cache(maxsize=4096)
def program(steps: Steps, rank: int, size: int, numel: int, itemsize: int, *rest: object) -> Program:
    """Return the program of a call. It is cached, because every training step makes the same calls."""
    cut = patterns.in_segments(steps(rank, size, numel, itemsize, *rest), max(1, SEGMENT // itemsize))
    return compiled(cut)

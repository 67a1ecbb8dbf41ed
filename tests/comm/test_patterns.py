"""Patterns played with lists of numbers: every rank ends with the right vector, at the declared cost."""

import subprocess
import sys

import pytest

from paceline.comm import patterns
from paceline.types import Link, spread

SIZES = range(1, 10)
LENGTHS = (0, 1, 2, 7, 8, 9, 64, 101)


def play(pattern, vectors, segment=0):
    """Run all ranks: each goes on as far as messages have arrived, so that order across ranks does not matter."""
    held = [list(vector) for vector in vectors]
    steps = [list(pattern(rank)) for rank in range(len(vectors))]
    if segment:
        steps = [list(patterns.in_segments(own, segment)) for own in steps]
    flying, sent, moved = {}, [0] * len(vectors), True
    at, posted = [0] * len(vectors), [False] * len(vectors)
    while moved:
        moved = False
        for rank, own in enumerate(steps):
            while at[rank] < len(own):
                step = own[at[rank]]
                if not posted[rank]:
                    for peer, start, stop in step.sends:
                        flying.setdefault((rank, peer), []).append((start, stop, held[rank][start:stop]))
                        sent[rank] += stop - start
                    posted[rank] = True
                if not all(flying.get((message.peer, rank)) for message in step.receives):
                    break
                receive(held[rank], step, {m.peer: flying[m.peer, rank].pop(0) for m in step.receives}, rank)
                at[rank], posted[rank], moved = at[rank] + 1, False, True
    assert [len(own) for own in steps] == at, "ranks wait for each other for ever"
    assert not any(flying.values()), "a message has no receiver"
    return held, sent


def receive(vector, step, arrived, rank):
    parts = {}
    for message in step.receives:
        start, stop, values = arrived[message.peer]
        assert (start, stop) == message[1:], "both ends must name one range"
        parts.setdefault((start, stop), {})[message.peer] = values
    for (start, stop), heard in parts.items():
        if step.adds:
            heard[rank] = vector[start:stop]
            vector[start:stop] = [sum(column) for column in zip(*(heard[peer] for peer in sorted(heard)), strict=True)]
        else:
            for values in heard.values():  # several only if the range is empty
                vector[start:stop] = values


def numbers(rank, numel):
    return [(3 * i + 7 * rank + 1) for i in range(numel)]


def total(size, numel):
    return [sum(column) for column in zip(*(numbers(rank, numel) for rank in range(size)), strict=True)]


SUMS = {
    "ring": lambda size, numel: lambda rank: patterns.ring_sum(rank, spread(numel, size)),
    "direct": lambda size, numel: lambda rank: patterns.direct_sum(rank, size, numel),
    "two rounds": lambda size, numel: lambda rank: patterns.two_rounds(rank, spread(numel, size)),
    "doubling": lambda size, numel: lambda rank: patterns.doubling_sum(rank, size, numel),
    "halving": lambda size, numel: lambda rank: patterns.halving_sum(rank, size, numel),
    "levels": lambda size, numel: lambda rank: patterns.levels_sum(rank, dimensions(size), numel),
}


def dimensions(size):
    """The prime factors of a size: 8 is 2x2x2, 6 is 2x3."""
    factors, rest = [], size
    for factor in range(2, size + 1):
        while rest % factor == 0:
            factors.append(factor)
            rest //= factor
    return factors


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SUMS)
def test_every_rank_ends_with_the_sum(name, size):
    for numel in LENGTHS:
        vectors = [numbers(rank, numel) for rank in range(size)]
        held, _ = play(SUMS[name](size, numel), vectors)
        assert held == [total(size, numel)] * size, numel


@pytest.mark.parametrize("name", ["ring", "levels", "direct"])
@pytest.mark.parametrize("segment", [1, 3, 50])
def test_segments_change_nothing(name, segment):
    for size in (2, 3, 8):
        vectors = [numbers(rank, 101) for rank in range(size)]
        assert play(SUMS[name](size, 101), vectors, segment) == play(SUMS[name](size, 101), vectors)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["ring", "direct"])
def test_a_reduce_scatter_leaves_each_rank_its_block(kind, size):
    pattern = getattr(patterns, f"{kind}_reduce_scatter")
    for numel in LENGTHS:
        bounds = spread(numel, size)
        held, _ = play(lambda rank, cut=bounds: pattern(rank, cut), [numbers(rank, numel) for rank in range(size)])
        for rank in range(size):
            mine = slice(bounds[rank], bounds[rank + 1])
            assert held[rank][mine] == total(size, numel)[mine]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["ring", "direct"])
def test_an_all_gather_gives_everybody_all_blocks(kind, size):
    pattern = getattr(patterns, f"{kind}_all_gather")
    for numel in LENGTHS:
        bounds, whole = spread(numel, size), numbers(0, numel)
        parts = [[x if bounds[r] <= i < bounds[r + 1] else None for i, x in enumerate(whole)] for r in range(size)]
        held, _ = play(lambda rank, cut=bounds: pattern(rank, cut), parts)
        assert held == [whole] * size


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("broadcast", [patterns.tree_broadcast, patterns.chain_broadcast])
def test_a_broadcast_reaches_everybody(broadcast, size):
    for root in range(size):
        vectors = [numbers(rank, 9) for rank in range(size)]
        held, _ = play(lambda rank, root=root: broadcast(rank, size, 9, root), vectors)
        assert held == [numbers(root, 9)] * size


def test_neighbors_hear_whom_they_name():
    def pattern(rank):
        return patterns.neighbors(5, sources=[(rank - 1) % 4], targets=[(rank + 1) % 4])

    held, sent = play(pattern, [numbers(rank, 5) for rank in range(4)])
    assert held == [numbers((rank - 1) % 4, 5) for rank in range(4)]
    assert sent == [5] * 4


@pytest.mark.parametrize("size", SIZES)
def test_listed_flows_cost_what_closed_forms_say(size):
    numel = 2520  # divides by every size, and by their products of prime factors
    dims = dimensions(size)
    closed = {
        "ring": patterns.ring_cost(size, numel),
        "direct": patterns.direct_cost(size, numel),
        "two rounds": patterns.two_rounds_cost(size, numel),
        "doubling": patterns.doubling_cost(size, numel),
        "levels": patterns.levels_cost(dims, numel),
    }
    for name, expected in closed.items():
        found = patterns.cost(SUMS[name](size, numel), size)
        assert (found.rounds, found.nbytes) == pytest.approx((expected.rounds, expected.nbytes)), name
    tree = patterns.cost(lambda rank: patterns.tree_broadcast(rank, size, numel), size)
    assert tree == patterns.tree_cost(size, numel)


def test_bytes_that_ranks_send_are_those_of_the_flows():
    for name, make in SUMS.items():
        for size in SIZES:
            _, sent = play(make(size, 101), [numbers(rank, 101) for rank in range(size)])
            listed = [0] * size
            for flows in patterns.flows(make(size, 101), size):
                for flow in flows:
                    listed[flow.src] += flow.nbytes
            assert sent == listed, (name, size)


def test_halving_moves_what_a_ring_moves_in_fewer_rounds():
    ring, halving = (patterns.cost(SUMS[name](8, 2520), 8) for name in ("ring", "halving"))
    assert halving.nbytes == ring.nbytes
    assert (ring.rounds, halving.rounds) == (14, 6)


def test_a_link_gives_seconds():
    assert patterns.ring_cost(4, 4000).seconds(Link(0.5, 1000)) == 6 * 0.5 + 6.0


def test_a_wrong_pattern_is_noticed():
    """The control: without the last step of the ring, not every rank has the sum."""

    def short(rank):
        yield from list(patterns.ring_sum(rank, spread(8, 4)))[:-1]

    held, _ = play(short, [numbers(rank, 8) for rank in range(4)])
    assert held != [total(4, 8)] * 4


def test_patterns_need_no_torch():
    program = "import paceline.comm.patterns, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

"""Who holds how much of a parameter server."""

import pytest

from paceline.strategy import schedules
from paceline.strategy.exchanges._placement import LARGEST, SMALLEST, Placer, shares
from paceline.types import Layout, Profile
from paceline.workload.layouts import layout_of


@pytest.mark.parametrize("colocated", [True, False])
@pytest.mark.parametrize("workers", range(1, 9))
def test_shares_cover_everything_once(workers, colocated):
    for servers in range(0 if colocated else 1, workers + 1):
        assert sum(shares(workers, servers, colocated)) == pytest.approx(1.0)


def test_shares_are_those_of_the_split_law():
    assert shares(4, 0, True) == (0.25,) * 4
    assert shares(4, 4, True) == (0.0,) * 4 + (0.25,) * 4
    assert shares(2, 1, True) == (0.25, 0.25, 0.5)
    assert shares(1, 1, True) == (0.0, 1.0)


@pytest.mark.parametrize(("workers", "servers"), [(n, k) for n in range(2, 9) for k in range(n + 1)])
def test_all_holders_are_done_at_the_time_of_the_law(workers, servers):
    """Bytes in one direction: a server hears its share n times, a worker n-1 times, and pulls what others hold."""
    n, k = workers, servers
    parts = shares(n, k, True)
    expected = 2 * n * (n - 1) / (n * n + k * n - 2 * k)  # M = B = 1
    for rank, part in enumerate(parts):
        way = n * part if rank >= n else (1 - part) + (n - 1) * part
        assert way == pytest.approx(expected)


@pytest.mark.parametrize("model", ["resnet50", "bert_base", "vgg16"])
@pytest.mark.parametrize("schedule", ["bsp", "wfbp", "fusion"])
@pytest.mark.parametrize(("workers", "servers", "colocated"), [(4, 0, True), (4, 2, True), (4, 4, True), (3, 2, False)])
def test_nobody_holds_more_than_a_tenth_above_its_share(model, schedule, workers, servers, colocated):
    layout = Layout(tuple(reversed(layout_of(model))))
    parts = shares(workers, servers, colocated)
    placer = Placer(parts)
    for chunk in schedules.MENU.make(schedule).plan(Profile(layout), lambda nbytes: nbytes / 1e9).chunks():
        pieces = placer.pieces(chunk.index, chunk.numel, 4)
        assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
        assert pieces[-1].stop == chunk.numel
        assert all(4 * (piece.stop - piece.start) <= max(SMALLEST, LARGEST) for piece in pieces)
    for load, part in zip(placer.loads, parts, strict=True):
        assert load <= 1.10 * part * sum(placer.loads)


def test_a_chunk_is_placed_once():
    placer = Placer(shares(3, 1, True))
    assert placer.pieces(0, 1_000_000, 4) is placer.pieces(0, 1_000_000, 4)

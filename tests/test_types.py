import itertools

import pytest

from paceline.types import Layout, Link, Plan, Slot, Unit, spread


def layout(*sizes, tail=0):
    return Layout(tuple(Slot(f"t{k}", size) for k, size in enumerate(sizes)), 4, tail)


def test_offsets_are_where_slots_begin_and_the_tail_begins():
    assert layout(3, 0, 5, tail=3).offsets == (0, 3, 3, 8)
    assert layout(3, 0, 5, tail=3).numel == 11
    assert layout(3, 0, 5, tail=3).nbytes == 44


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 3, (0,)), (2, 4, (0, 2)), (3, 8, (2,)), (0, 11, (0, 2)), (8, 11, ())],
)
def test_slots_in_a_range_are_those_that_share_an_element(start, stop, expected):
    assert layout(3, 0, 5, tail=3).slots_in(start, stop) == expected


@pytest.mark.parametrize("cuts", [(0,), (1, 4), (0, 4, 4), (0, 5, 3), ()])
def test_a_plan_needs_rising_cuts_from_zero(cuts):
    with pytest.raises(ValueError, match="cut points"):
        Plan(cuts)


def test_chunks_number_on_from_the_first():
    assert [(c.index, c.start, c.stop, c.arena) for c in Plan((0, 2, 7)).chunks(1, 5)] == [(5, 0, 2, 1), (6, 2, 7, 1)]


@pytest.mark.parametrize("total", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("parts", [1, 2, 3, 7])
@pytest.mark.parametrize("grain", [1, 16])
def test_spread_tiles_the_whole_at_multiples_of_the_grain(total, parts, grain):
    bounds = spread(total, parts, grain)
    assert bounds[0] == 0
    assert bounds[-1] == total
    assert list(bounds) == sorted(bounds)
    assert all(bound % grain == 0 or bound == total for bound in bounds)
    sizes = [b - a for a, b in itertools.pairwise(bounds)]
    assert max(sizes) - min(sizes) <= 2 * grain


def test_a_unit_says_what_it_is_in_an_error():
    assert str(Unit(812, 7)) == "chunk 7 at step 812"
    assert str(Unit(812, 7, 1)) == "chunk 7, phase 1 at step 812"


def test_a_link_takes_latency_plus_bytes_over_bandwidth():
    assert Link(0.5, 100).seconds(50) == 1.0

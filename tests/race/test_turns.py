from collections import Counter
from itertools import groupby

from paceline.race.turns import in_turns

CELLS = [(model, workers) for workers in (1, 2, 3) for model in "abc"]


def test_what_is_compared_runs_one_after_the_other():
    for number in range(50):
        order = in_turns(CELLS, lambda cell: cell[0], f"round {number}")
        assert sorted(order) == sorted(CELLS)
        assert len([model for model, _ in groupby(order, lambda cell: cell[0])]) == 3


def test_nobody_has_a_place_of_their_own():
    orders = [in_turns(CELLS, lambda cell: cell[0], f"round {number}") for number in range(900)]
    for place in (0, 4, 8):
        counts = Counter(order[place] for order in orders)
        assert set(counts) == set(CELLS)
        assert max(counts.values()) < 2 * 900 / 9


def test_the_same_seed_gives_the_same_order():
    assert in_turns(CELLS, lambda cell: cell[0], "x") == in_turns(CELLS, lambda cell: cell[0], "x")

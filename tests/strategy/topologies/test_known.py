"""Values that are known from the formulas and from the papers."""

from fractions import Fraction
from math import cos, floor, log2, pi

import numpy as np
import pytest

from paceline.errors import BadMember, WrongCommand
from paceline.strategy import topologies
from paceline.strategy.topologies._weights import matrix, mixing_rate, models_crossing, models_sent, rows
from paceline.strategy.topologies.grid import shape
from paceline.types import View

make = topologies.MENU.make


def after(topology, x, steps, nodes=1, start=0):
    x = np.asarray(x, dtype=float)
    for step in range(start, start + steps):
        x = matrix(topology, len(x), step, nodes) @ x
    return x


def test_exp2_on_four_ranks():
    found = after(make("exp2"), range(4), 1)
    assert np.allclose(found, [5 / 3, 4 / 3, 1, 2], rtol=0, atol=1e-15)


def test_a_ring_of_two_has_one_neighbor():
    assert rows(make("ring"), 2)[0].sources == ((1, 0.5),)


def test_exp2_reaches_ceil_log2_ranks():
    targets = {n: rows(make("exp2"), n)[0].targets for n in (2, 3, 4, 5, 8, 9)}
    assert targets == {2: (1,), 3: (1, 2), 4: (1, 2), 5: (1, 2, 4), 8: (1, 2, 4), 9: (1, 2, 4, 8)}


def test_powers_are_exact_where_logarithms_round():
    assert make("exp(base=5)").offsets(126)[-1] == 125  # log(125, 5) is 3.0000000000000004
    assert make("exp(base=5)").offsets(125)[-1] == 25
    assert make("exp(base=3)").offsets(244)[-1] == 243  # log(243, 3) is 4.999999999999999


@pytest.mark.parametrize("n", [3, 4, 5, 8, 16, 33])
def test_mixing_rate_of_a_ring(n):
    assert mixing_rate(make("ring"), n) == pytest.approx(1 / 3 + 2 / 3 * cos(2 * pi / n), abs=1e-12)


@pytest.mark.parametrize("n", [2, 4, 6, 8, 10, 12, 16, 64])
def test_mixing_rate_of_exp2(n):
    assert mixing_rate(make("exp2"), n) == pytest.approx(1 - 2 / (2 + floor(log2(n - 1))), abs=1e-12)


@pytest.mark.parametrize("n", [3, 4, 5, 16])
def test_mixing_rate_of_a_star(n):
    assert mixing_rate(make("star"), n) == pytest.approx(1 - 1 / n, abs=1e-12)


@pytest.mark.parametrize(("text", "n"), [("ring", 1), ("ring", 2), ("full", 7), ("one_peer(exp2)", 16), ("star", 2)])
def test_mixing_rate_of_an_exact_mean_is_zero(text, n):
    assert mixing_rate(make(text), n) == 0


def test_mixing_rate_of_a_long_period_is_not_taken_for_zero():
    """For prime n > 2 the product of 1 + z^d over d = 1 .. n-1 is 1, so that 2^-(n-1) is left after n - 1 steps."""
    assert mixing_rate(make("one_peer(full)"), 61) == pytest.approx(1 / 2, abs=1e-12)


@pytest.mark.parametrize("phase", range(6))
def test_one_peer_exp2_on_eight_ranks_is_the_mean_after_three_steps_from_any_phase(phase):
    x = np.random.default_rng(0).integers(0, 100, 8) * 8
    assert np.array_equal(after(make("one_peer(exp2)"), x, 3, start=phase), np.full(8, x.mean()))


@pytest.mark.parametrize("text", ["exp2", "exp(base=3)", "ring", "one_way_ring", "full"])
def test_one_peer_says_exactly_when_a_period_is_the_mean(text):
    topology = make(f"one_peer({text})")
    for n in range(1, 20):
        exact = np.allclose(after(topology, np.eye(n)[0], topology.period(n)), 1 / n, rtol=0, atol=1e-14)
        assert exact == topology.exact(n) == (topology.note(n) is None), n


def test_one_peer_notes_that_the_mean_is_a_limit():
    assert "on 6 ranks reaches the mean only in the limit" in make("one_peer(exp2)").note(6)
    assert make("one_peer(exp2)").note(8) is None


def test_one_peer_sends_one_model_whatever_the_graph():
    for text in ("exp2", "ring", "full", "exp(base=3)"):
        assert models_sent(make(f"one_peer({text})"), 12) == (1.0,) * 12


def test_one_peer_ring_goes_one_way_then_the_other():
    targets = [make("one_peer(ring)").row(0, View(0, 5), step).targets for step in range(3)]
    assert targets == [(1,), (4,), (1,)]


@pytest.mark.parametrize("text", ["star", "grid", "star(uniform=true)", "one_peer(exp2)", "inner_outer"])
@pytest.mark.parametrize("around", ["one_peer({})", "inner_outer(inner={})", "inner_outer(outer={})"])
def test_one_peer_of_an_irregular_graph_is_refused(text, around):
    with pytest.raises(BadMember, match=r"converge to a wrong mean\. try: one_peer\(exp2\)") as caught:
        make(around.format(text))
    assert str(make(text)) in str(caught.value)


@pytest.mark.parametrize("text", ["star", "grid", "ring", "one_peer(exp2)", "inner_outer(outer=ring)"])
@pytest.mark.parametrize("n", [5, 6, 12])
def test_the_limit_is_the_true_mean(text, n):
    x = np.arange(n) ** 2
    nodes = 2 if n % 2 == 0 else 1
    assert np.allclose(after(make(text), x, 2000, nodes), x.mean(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("text", "n"), [("star(uniform=true)", 5), ("grid(uniform=true)", 6)])
def test_uniform_weights_on_an_irregular_graph_converge_to_a_wrong_mean(text, n):
    """The limit weighs each rank by its neighbors and itself."""
    x = np.arange(n) ** 2
    counts = np.array([len(row.targets) + 1 for row in rows(make(text), n)])
    found = after(make(text), x, 2000)
    assert np.allclose(found, (counts * x).sum() / counts.sum(), rtol=0, atol=1e-9)
    assert abs(found[0] - x.mean()) > 0.05
    assert "well-connected ranks count more" in make(text).note(n)


def test_uniform_weights_on_a_regular_grid_keep_the_mean():
    assert make("grid(uniform=true)").doubly_stochastic(4)
    assert not make("grid(uniform=true)").doubly_stochastic(6)


def test_a_grid_is_most_square_and_row_major():
    assert [shape(n) for n in (1, 2, 6, 7, 12, 16, 36)] == [(1, 1), (1, 2), (2, 3), (1, 7), (3, 4), (4, 4), (6, 6)]
    assert [row.targets for row in rows(make("grid"), 6)] == [(1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4)]
    assert make("grid").note(7) == "grid on 7 ranks is a line: 7 is prime"
    assert make("grid").note(6) is None


def test_a_star_has_its_center_at_rank_zero():
    center, *others = rows(make("star"), 5)
    assert center.targets == (1, 2, 3, 4)
    assert center.keep == pytest.approx(1 / 5)
    assert [(row.targets, row.keep) for row in others] == [((0,), 4 / 5)] * 4


def test_metropolis_hastings_weights():
    weights = {
        (r, s): Fraction(w).limit_denominator(100)
        for r, row in enumerate(rows(make("grid"), 6))
        for s, w in row.sources
    }
    assert weights[0, 1] == weights[1, 0] == Fraction(1, 4)  # degrees 2 and 3
    assert weights[0, 3] == Fraction(1, 3)  # degrees 2 and 2
    assert weights[1, 4] == Fraction(1, 4)  # degrees 3 and 3


def test_a_base_below_two_is_refused():
    with pytest.raises(BadMember, match=r"exp\(base=1\): powers of it do not grow\. try: exp\(base=2\)"):
        make("exp(base=1)")


# inner_outer -----------------------------------------------------------------------------------------


def published(rank, step, nodes, local):
    """Whom a rank sends to, as the published benchmark says it: step over the rank that crosses."""
    node, place = divmod(rank, local)
    out = step % local
    if place == out:
        return (node + 2 ** (step % (floor(log2(nodes - 1)) + 1))) % nodes * local + place
    distance = 2 ** (step % (floor(log2(local - 2)) + 1))
    if distance >= (out - place) % local:
        distance += 1
    return node * local + (place + distance) % local


@pytest.mark.parametrize(("nodes", "local"), [(2, 3), (2, 4), (4, 4), (3, 5), (5, 8), (8, 3)])
def test_inner_outer_is_the_published_one(nodes, local):
    topology = make("inner_outer")
    for step in range(topology.period(nodes * local, nodes)):
        found = [row.targets for row in rows(topology, nodes * local, step, nodes)]
        assert found == [(published(rank, step, nodes, local),) for rank in range(nodes * local)]


@pytest.mark.parametrize(("nodes", "local"), [(2, 2), (2, 4), (4, 2), (4, 4), (3, 3)])
def test_one_model_per_node_and_step_crosses(nodes, local):
    assert models_crossing(make("inner_outer"), nodes * local, nodes) == (1.0,) * nodes


def test_two_ranks_per_node_meet_at_even_steps_and_cross_at_odd_ones():
    steps = [[row.targets[0] for row in rows(make("inner_outer"), 8, step, 4)] for step in range(4)]
    assert steps == [
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 4, 5, 6, 7, 0, 1],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [4, 5, 6, 7, 0, 1, 2, 3],
    ]
    assert np.allclose(after(make("inner_outer"), range(8), 4, nodes=4), 3.5, rtol=0, atol=1e-15)
    assert "two ranks per node" in make("inner_outer").note(8, 4)


def test_on_one_node_or_with_one_rank_per_node_it_is_one_peer():
    mixed = make("inner_outer(inner=ring)")
    for step in range(6):
        assert rows(mixed, 6, step, 1) == rows(make("one_peer(ring)"), 6, step)
        assert rows(mixed, 6, step, 6) == rows(make("one_peer(exp2)"), 6, step)
    assert mixed.note(6, 1) == "inner_outer(inner=ring) on one node is one_peer(ring)"
    assert mixed.note(6, 6) == "inner_outer(inner=ring) with one rank per node is one_peer(exp2)"
    assert mixed.note(6, 2) is None


def test_ranks_of_a_node_need_not_be_neighbors():
    where = (0, 1, 0, 1, 0, 1)
    found = [make("inner_outer").row(rank, View(rank, 6, where), 0).targets for rank in range(6)]
    assert found == [(1,), (0,), (4,), (5,), (2,), (3,)]


def test_nodes_of_different_sizes_are_refused():
    with pytest.raises(WrongCommand, match=r"7 ranks and 2 nodes: every node needs the same number of ranks\. try: 6"):
        make("inner_outer").check(7, 2)
    with pytest.raises(WrongCommand, match="every node needs the same number of ranks"):
        make("inner_outer").row(0, View(0, 4, (0, 0, 0, 1)), 0)

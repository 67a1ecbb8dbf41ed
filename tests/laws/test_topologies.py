"""What every topology promises, over its MENU."""

import numpy as np
import pytest

from paceline.errors import WrongCommand
from paceline.strategy import topologies
from paceline.strategy.topologies._weights import connected, matrix, rows

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
NEEDS_A_FILE = {"graph"}
TEXTS = (
    *(name for name in topologies.MENU.names() if name not in NEEDS_A_FILE),
    "exp(base=3)",
    "grid(uniform=true)",
    "star(uniform=true)",
    "one_peer(ring)",
    "one_peer(one_way_ring)",
    "one_peer(exp(base=3))",
    "one_peer(full)",
    "inner_outer(inner=ring, outer=full)",
)
GRAPHS = {
    "graph({})": "0 1\n1 2\n2 3\n1 3\n",
    "graph({}, uniform=true)": "0 1\n1 2\n2 3\n1 3\n",
    "graph({}, directed=true)": "0 1\n1 2\n2 3\n3 0\n0 2\n",
    "graph({}, directed=yes)": "0 1\n1 2\n2 0\n",
    "graph({}, directed=1)": "0 1 0.25\n1 2 0.5\n2 0 0.75\n2 2 0.5\n",
}


@pytest.fixture(params=[*TEXTS, *GRAPHS])
def case(request, tmp_path):
    """A topology and the (size, nodes) on which it may stand."""
    if request.param not in GRAPHS:
        return topologies.MENU.make(request.param), [(n, m) for n in SIZES for m in range(1, n + 1) if n % m == 0]
    file = tmp_path / "edges.txt"
    file.write_text(GRAPHS[request.param])
    graph = topologies.MENU.make(request.param.format(file))
    return graph, [(1, 1), (graph.size, 1)]


def worlds(case):
    """Every topology, world and step of a period."""
    topology, places = case
    for size, nodes in places:
        topology.check(size, nodes)
        for step in range(topology.period(size, nodes)):
            yield topology, size, nodes, step


def test_every_word_of_the_menu_is_tested():
    words = {text.partition("(")[0] for text in (*TEXTS, *GRAPHS)}
    assert words == set(topologies.MENU.names())


def test_rows_sum_to_one_and_weights_are_not_negative(case):
    for topology, size, nodes, step in worlds(case):
        weights = matrix(topology, size, step, nodes)
        assert weights.min() >= 0
        assert np.allclose(weights.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_columns_sum_to_one_exactly_where_it_says_so(case):
    for topology, size, nodes, step in worlds(case):
        columns = matrix(topology, size, step, nodes).sum(axis=0)
        sum_to_one = bool(np.allclose(columns, 1, rtol=0, atol=1e-12))
        assert sum_to_one == topology.doubly_stochastic(size, nodes), (size, nodes, step)


def test_weights_are_symmetric_exactly_where_it_says_so(case):
    topology, places = case
    for size, nodes in places:
        steps = [matrix(topology, size, step, nodes) for step in range(topology.period(size, nodes))]
        assert all(np.array_equal(w, w.T) for w in steps) == topology.symmetric(size, nodes), (size, nodes)


def test_a_rank_hears_from_exactly_those_that_send_to_it(case):
    for topology, size, nodes, step in worlds(case):
        found = rows(topology, size, step, nodes)
        heard = {(source, rank) for rank, row in enumerate(found) for source, _ in row.sources}
        sent = {(rank, target) for rank, row in enumerate(found) for target in row.targets}
        assert heard == sent, (size, nodes, step)


def test_sources_and_targets_are_sorted_other_ranks(case):
    for topology, size, nodes, step in worlds(case):
        for rank, row in enumerate(rows(topology, size, step, nodes)):
            for ranks in ([source for source, _ in row.sources], list(row.targets)):
                assert ranks == sorted(set(ranks) - {rank})
                assert not ranks or 0 <= ranks[0] <= ranks[-1] < size


def test_every_rank_hears_of_every_other_over_a_period(case):
    topology, places = case
    assert all(connected(topology, size, nodes) for size, nodes in places)


def test_rows_come_again_after_a_period(case):
    topology, places = case
    for size, nodes in places:
        period = topology.period(size, nodes)
        steps = [rows(topology, size, step, nodes) for step in range(2 * period)]
        assert steps[:period] == steps[period:]
        assert topology.changes or period == 1


def test_what_it_calls_undirected_goes_both_ways(case):
    for topology, size, nodes, step in worlds(case):
        if not topology.directed:
            for row in rows(topology, size, step, nodes):
                assert tuple(source for source, _ in row.sources) == row.targets


def test_the_same_text_gives_the_same_rows(case):
    topology, places = case
    again = topologies.MENU.make(str(topology))
    for size, nodes in places:
        assert rows(again, size, 3, nodes) == rows(topology, size, 3, nodes)


def test_a_topology_prints_as_it_is_read(case):
    topology, _ = case
    assert topologies.MENU.make(str(topology)) == topology


def test_one_rank_keeps_all_and_hears_from_nobody(case):
    topology, _ = case
    topology.check(1, 1)
    [row] = rows(topology, 1)
    assert (row.keep, row.sources, row.targets) == (1.0, (), ())
    assert topology.note(1) is None


def test_a_world_without_ranks_and_a_node_without_ranks_are_refused(case):
    topology, _ = case
    with pytest.raises(WrongCommand, match="at least 1 rank is needed"):
        topology.check(0, 1)
    with pytest.raises(WrongCommand, match="every node needs at least 1 rank"):
        topology.check(1, 2)

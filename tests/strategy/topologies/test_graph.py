"""Graphs of one's own: what is read, and what is wrong with a file that is refused."""

from types import SimpleNamespace

import networkx
import numpy as np
import pytest

from paceline.errors import BadMember, WrongCommand
from paceline.strategy import topologies
from paceline.strategy.topologies._weights import cut_off, matrix, rows
from paceline.strategy.topologies.graph import Graph


@pytest.fixture
def graph(tmp_path):
    def make(text, settings=""):
        file = tmp_path / "edges.txt"
        file.write_text(text)
        return topologies.MENU.make(f"graph({file}{settings})")

    return make


DIRECTED = ", directed=true"


def test_an_undirected_edge_goes_both_ways(graph):
    found = graph("# a line\n0 1\n\n1 2  # the last\n")
    assert [row.targets for row in rows(found, 3)] == [(1,), (0, 2), (1,)]
    assert np.allclose(matrix(found, 3), np.array([[2, 1, 0], [1, 1, 1], [0, 1, 2]]) / 3)


def test_a_directed_edge_goes_from_the_first_to_the_second(graph):
    found = graph("0 1\n1 2\n2 0\n0 2\n", DIRECTED)
    assert [row.targets for row in rows(found, 3)] == [(1, 2), (2,), (0,)]
    assert rows(found, 3)[2].sources == ((0, 1 / 3), (1, 1 / 3))
    assert not found.doubly_stochastic(3)
    assert "without rule push_sum it converges to a wrong mean" in found.note(3)


def test_a_regular_directed_graph_keeps_the_mean(graph):
    found = graph("0 1\n1 2\n2 0\n", DIRECTED)
    assert found.doubly_stochastic(3)
    assert found.note(3) is None


def test_weights_are_what_the_hearing_rank_takes(graph):
    found = graph("0 1 0.25\n1 0 0.5\n", DIRECTED)
    assert np.array_equal(matrix(found, 2), [[0.5, 0.5], [0.25, 0.75]])
    assert "not doubly stochastic" in found.note(2)


def test_what_a_rank_keeps_may_be_written_with_six_digits(graph):
    found = graph("0 1 0.333333\n0 2 0.333333\n1 2 0.333333\n0 0 0.333333\n")
    assert matrix(found, 3).sum(axis=1) == pytest.approx([1, 1, 1], abs=1e-15)
    assert found.doubly_stochastic(3)


def test_a_rank_may_keep_nothing(graph):
    assert rows(graph("0 1 1.0\n"), 2)[0].keep == 0


def test_uniform_weights_of_an_irregular_graph_are_noted(graph):
    found = graph("0 1\n1 2\n", ", uniform=true")
    assert not found.doubly_stochastic(3)
    assert not found.symmetric(3)
    assert "well-connected ranks count more" in found.note(3)


WRONG = {
    "0 1\n1 x\n": "line 2: 1 x: a line is two ranks and at most a weight. try: 0 1, or 0 1 0.25",
    "0 1\n\n2\n": "line 3: 2: a line is two ranks",
    "0 1 0.5 7\n": "line 1: 0 1 0.5 7: a line is two ranks",
    "0 1 heavy\n": "line 1: 0 1 heavy: a line is two ranks",
    "0 1\n0 -2\n": "line 2: rank -2 does not exist",
    "0 1\n1 1\n": "line 2: rank 1 is its own neighbor",
    "0 1\n1 2\n1 0\n": "line 3: edge 1 0 is there already: line 1. try: leave one out, or directed=true",
    "0 1 0.5\n1 2\n": "line 2: it has no weight and line 1 has a weight. try: weights for all edges or for none",
    "0 1 0\n": "line 1: a weight is above 0; got 0",
    "0 1 -0.5\n": "line 1: a weight is above 0; got -0.5",
    "0 1 nan\n": "line 1: a weight is above 0; got nan",
    "0 1 0.75\n1 2 0.5\n": "the weights of rank 1 sum to 1.25, not to 1. try: smaller weights",
    "0 1 0.5\n0 0 0.4\n": "the weights of rank 0 sum to 0.9, not to 1. try: leave '0 0' out",
    "0 1\n2 3\n": "rank 2 cannot be reached from rank 0",
    "0 1\n1 3\n": "rank 2 cannot be reached: no edge names it, and there is a rank 3",
    "0 99999999999\n": "rank 1 cannot be reached: no edge names it",
    "# nothing\n": "it has no edges",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_damaged_file_is_named_by_its_line(graph, text):
    with pytest.raises(WrongCommand) as caught:
        graph(text)
    assert WRONG[text] in str(caught.value)
    assert "edges.txt" in str(caught.value)


def test_both_directions_are_two_edges_of_a_directed_graph(graph):
    assert graph("0 1\n1 0\n", DIRECTED).size == 2
    with pytest.raises(WrongCommand, match=r"line 2: edge 0 1 is there already: line 1\. try: leave one out$"):
        graph("0 1\n0 1\n", DIRECTED)


def test_a_directed_graph_must_lead_back(graph):
    with pytest.raises(WrongCommand, match="rank 0 cannot be reached from rank 1"):
        graph("0 1\n1 2\n0 2\n", DIRECTED)


def test_uniform_beside_weights_is_refused(graph):
    with pytest.raises(BadMember, match=r"uniform weights beside those of the edges\. try: leave uniform out"):
        graph("0 1 0.5\n", ", uniform=true")


def test_another_size_is_refused_with_the_line_that_does_not_fit(graph):
    found = graph("0 1\n1 2\n2 3\n")
    found.check(4)
    found.check(1)
    with pytest.raises(WrongCommand, match=r"line 2: rank 2 does not exist among 2 ranks\. try: -np 4"):
        found.check(2)
    with pytest.raises(WrongCommand, match=r"on 8 ranks: it has 4 ranks, 0 to 3\. try: -np 4"):
        found.check(8)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(WrongCommand, match=r"graph\(.*none\.txt\): there is no such file"):
        topologies.MENU.make(f"graph({tmp_path}/none.txt)")
    with pytest.raises(WrongCommand, match=r"cannot be read: .*directory"):
        topologies.MENU.make(f"graph({tmp_path})")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WrongCommand, match="cannot be read"):
        topologies.MENU.make(f"graph({tmp_path}/binary)")
    with pytest.raises(BadMember, match="graph needs file"):
        topologies.MENU.make("graph")


# networkx --------------------------------------------------------------------------------------------


def test_a_networkx_graph_is_taken():
    found = Graph.of(networkx.petersen_graph())
    assert found.size == 10
    assert not found.directed
    assert np.allclose(matrix(found, 10).diagonal(), 1 / 4)


def test_a_networkx_digraph_with_weights_is_taken_as_it_is():
    weights = np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]])
    source = networkx.from_numpy_array(weights, create_using=networkx.DiGraph)
    assert np.array_equal(matrix(Graph.of(source), 3), weights.T)


def test_a_networkx_graph_gets_a_file_and_reads_back(tmp_path):
    made = Graph.of(networkx.path_graph(4), uniform=True)
    kept = made.save(tmp_path / "path.txt")
    assert str(kept) == f"graph(file={tmp_path}/path.txt, uniform=true)"
    assert topologies.MENU.make(str(kept)) == kept
    assert rows(kept, 4) == rows(made, 4)
    weighted = Graph.of(networkx.from_numpy_array(np.full((3, 3), 1 / 3)))
    assert rows(weighted.save(tmp_path / "full.txt"), 3) == rows(weighted, 3)


def test_a_file_name_that_no_text_can_hold_is_refused(tmp_path):
    with pytest.raises(WrongCommand, match=r"a setting cannot hold '\('.*try: another file name"):
        Graph.of(networkx.path_graph(3)).save(tmp_path / "a(1).txt")


def test_nodes_that_are_not_ranks_are_refused():
    for nodes in ("ab", (1, 2), (0, 2), (0.0, 1.0)):
        with pytest.raises(WrongCommand, match=r"are not the ranks 0 to 1.*convert_node_labels_to_integers"):
            Graph.of(networkx.path_graph(nodes))


def test_a_wrong_networkx_edge_is_named_by_its_ends():
    parallel = networkx.MultiGraph([(0, 1), (0, 1)])
    with pytest.raises(WrongCommand, match="edge 0 1 is there already"):
        Graph.of(parallel)
    with pytest.raises(WrongCommand, match="edge 1 1: rank 1 is its own neighbor"):
        Graph.of(networkx.Graph([(0, 1), (1, 1)]))


def test_a_networkx_node_without_edges_is_named():
    lonely = networkx.path_graph(2)
    lonely.add_node(2)
    with pytest.raises(WrongCommand, match="rank 2 cannot be reached: no edge names it"):
        Graph.of(lonely)
    with pytest.raises(WrongCommand, match="it has no edges"):
        Graph.of(networkx.empty_graph(3))


@pytest.mark.parametrize("thing", [3, {"0": 1}, SimpleNamespace(nodes=3)])
def test_what_is_no_graph_is_refused(thing):
    with pytest.raises(WrongCommand, match="it takes a networkx graph"):
        Graph.of(thing)


def test_cut_off_names_the_first_pair_without_a_way():
    assert cut_off([(0, 1), (1, 0)], 2) is None
    assert cut_off([(0, 1)], 2) == (1, 0)
    assert cut_off([(1, 0)], 2) == (0, 1)
    assert cut_off([], 1) is None

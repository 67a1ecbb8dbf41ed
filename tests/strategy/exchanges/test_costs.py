"""Sums of what chunks cost, without listing flows."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.strategy import compressors, exchanges
from paceline.strategy.exchanges._costs import ROWS, load, steps_of, traffic
from paceline.strategy.topologies.inner_outer import InnerOuter
from paceline.train.serve import serve
from paceline.types import Chunk, Cluster, Lane, Layout, Slot, Unit, View

LAYOUT = Layout((Slot("a", 5000), Slot("b", 300)), 4, 2)
CHUNKS = [(LAYOUT, Chunk(0, 0, 5000)), (LAYOUT, Chunk(1, 5000, 5302))]
NONE = compressors.MENU.make("none")
LANE = Lane("x", needs_consensus=True, lossy_ok=True)


@pytest.mark.parametrize("text", ["allreduce", "hierarchical", "neighbor(ring)"])
def test_a_load_is_the_sum_of_all_flows(text):
    exchange, cluster = exchanges.MENU.make(text), Cluster((0, 0, 1, 1))
    into, rounds = [0] * (4 + exchange.servers), 0
    for layout, chunk in CHUNKS:
        for flows in traffic(exchange, NONE, layout, chunk, cluster):
            rounds += 1
            for flow in flows:
                into[flow.dst] += flow.nbytes
    found = load(exchange, NONE, CHUNKS, cluster)
    assert (list(found.received), found.rounds) == (into, rounds)


@pytest.mark.parametrize("text", ["neighbor(inner_outer)", "window(inner_outer)"])
def test_nodes_hear_of_each_other_even_if_not_in_the_first_step(text):
    """Of two ranks per node none crosses at even steps, both cross at odd ones."""
    exchange, cluster = exchanges.MENU.make(text), Cluster((0, 0, 1, 1))
    [first] = traffic(exchange, NONE, *CHUNKS[0], cluster, step=0)
    assert set(first.crossing().values()) == {0}
    found = load(exchange, NONE, CHUNKS, cluster)
    assert (found.steps, found.period) == (2, 2)
    assert found.crossing == (LAYOUT.nbytes, LAYOUT.nbytes)
    assert found.received == (LAYOUT.nbytes,) * 4


def test_a_long_period_among_many_ranks_is_sampled(monkeypatch):
    asked, plain = [], InnerOuter.row
    monkeypatch.setattr(InnerOuter, "row", lambda self, *place: asked.append(place) or plain(self, *place))
    cluster = Cluster(tuple(rank // 7 for rank in range(140)))
    found = load(exchanges.MENU.make("neighbor(inner_outer)"), NONE, CHUNKS, cluster)
    assert found.period == 105
    assert found.steps == 2 * (ROWS // 140 // 2)
    assert len(asked) <= ROWS, "chunks of a step share the rows of the topology"
    assert set(found.crossing) == {LAYOUT.nbytes}, "one rank of each node crosses at a step"


@pytest.mark.parametrize(("period", "most"), [(20, 5), (142, 71), (18, 7), (105, 73), (7, 1)])
def test_a_sample_has_as_many_even_steps_as_odd_ones(period, most):
    """With two ranks per node, inner_outer crosses at odd steps only."""
    steps = steps_of(period, most)
    assert len(set(steps)) == len(steps) <= max(2, most)
    assert set(steps) <= set(range(period))
    if period % 2 == 0:
        assert sum(step % 2 for step in steps) == len(steps) / 2


def test_two_ranks_per_node_cross_in_half_of_the_sampled_steps():
    cluster = Cluster(tuple(rank // 2 for rank in range(144)))
    found = load(exchanges.MENU.make("neighbor(inner_outer(exp2, full))"), NONE, CHUNKS, cluster)
    assert found.steps < found.period
    assert set(found.crossing) == {LAYOUT.nbytes}


SIZES = (100, 3000, 50, 20_000, 700, 64, 5000)


def received_by_a_run(comm, text):
    """Bytes into this rank when chunks of several sizes leave one after another."""
    channel = exchanges.MENU.make(text).join(comm, View(comm.rank, comm.size), LANE)
    sources = [channel.memory.allocate(numel, torch.float32) for numel in SIZES]
    results = [channel.memory.allocate_result(numel, torch.float32) for numel in SIZES]
    before = sum(comm.received())
    for index, (src, dst) in enumerate(zip(sources, results, strict=True)):
        channel.start(Unit(0, index), Chunk(index, 0, src.numel()), src, dst, None).wait()
    comm.barrier()
    got = sum(comm.received()) - before
    comm.barrier()
    return got


@pytest.mark.parametrize("text", ["ps", "ps(servers=1)", "ps(servers=2)", "allreduce"])
def test_a_load_is_what_workers_count_in_a_run(text):
    """A parameter server puts every chunk where least is so far; each by itself would go to the same few."""
    exchange = exchanges.MENU.make(text)
    got = run_ranks(4, lambda comm: received_by_a_run(comm, text), servers=exchange.servers, serve=serve)[:4]
    chunks = [(Layout((Slot("x", numel),), 4), Chunk(k, 0, numel)) for k, numel in enumerate(SIZES)]
    assert list(load(exchange, NONE, chunks, Cluster.of_one_host(4)).received[:4]) == got

"""What every exchange promises, over its MENU: on threads, with the codecs that it can carry."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import WrongCommand
from paceline.strategy import compressors, exchanges
from paceline.strategy.exchanges._costs import traffic
from paceline.strategy.exchanges.neighbor import edges
from paceline.strategy.topologies._weights import matrix
from paceline.train.serve import serve
from paceline.types import Chunk, Cluster, Lane, Layout, Slot, Unit, View

SIZES = (1, 2, 3, 4, 8)
TEXTS = (*exchanges.MENU.names(), "ps(servers=1)", "ps(servers=1, colocated=false)", "ps(servers=2)")


def carries(text, compressor):
    """What waits for nobody carries values as they are; compose refuses the rest."""
    return compressor == "none" or not exchanges.MENU.make(text).asynchronous


LANE = Lane("x", needs_consensus=False, lossy_ok=True)
MASS = Lane("x", needs_consensus=False, lossy_ok=False, tail="mass")
WRITTEN = {"dgc": "dgc(warmup=0)"}
GATHERED = [("allreduce", "topk"), ("allreduce", "gtopk")]
CARRIED = [
    (size, text, WRITTEN.get(name, name))
    for size in SIZES
    for text in TEXTS
    for name in compressors.MENU.names()
    if (size in (1, 3) or name in ("none", "cast", "gtopk"))
    and (exchanges.MENU.make(text).gathers or compressors.MENU.make(name).summable)
    and carries(text, name)
]


def combine(comm, text, numel, compressor="none", nodes=(), step=0, lane=LANE):
    """One chunk through an exchange at a step; the source, the result and what was received from each rank."""
    exchange, squeeze = exchanges.MENU.make(text), compressors.MENU.make(compressor)
    tail = int(lane.tail == "mass")
    layout = Layout((Slot("x", numel - tail),), 4, tail)
    channel = exchange.join(comm, View(comm.rank, comm.size, nodes), lane)
    memory = channel.memory
    src, dst = memory.allocate(numel, torch.float32), memory.allocate_result(numel, torch.float32)
    codec = squeeze.bind(layout, memory, torch.float32, exchange.shares_results)
    if codec is not None or not exchange.shares_results:
        dst = torch.zeros(numel)
    src.copy_((torch.arange(numel) % 7) + comm.rank)
    kept, before = src.clone(), comm.received()
    for phase in range(exchange.phases):
        chunk = Chunk(0, 0, numel)
        channel.start(Unit(step, 0, phase), chunk, src, dst, codec).wait()
    comm.barrier()  # what others write into this rank's memory has arrived too
    got = [after - then for after, then in zip(comm.received(), before, strict=True)]
    out = dst.clone()
    comm.barrier()
    return kept, src.clone(), out, got


def on_ranks(size, text, numel, compressor="none"):
    """What every worker saw; None where the exchange does not fit the size."""
    exchange = exchanges.MENU.make(text)
    if exchange.servers > size:
        with pytest.raises(WrongCommand):
            exchange.check(Cluster.of_one_host(size))
        return None
    work = lambda comm: combine(comm, text, numel, compressor)  # noqa: E731
    return run_ranks(size, work, servers=exchange.servers, serve=serve)[:size]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", [text for text in TEXTS if exchanges.MENU.make(text).consensus])
@pytest.mark.parametrize("numel", [1, 5, 1000, 70_001])
@pytest.mark.parametrize("compressor", ["none", "cast"])
def test_a_consensus_exchange_gives_everybody_the_same_sum(text, size, numel, compressor):
    """Of small whole numbers, which casts leave as they are."""
    found = on_ranks(size, text, numel, compressor) or []
    expected = sum(kept for kept, _, _, _ in found)
    for _, _, out, _ in found:
        assert torch.equal(out, expected)


@pytest.mark.parametrize("compressor", ["none", "cast"])
@pytest.mark.parametrize("text", ["neighbor(one_peer(exp2))", "neighbor(star)", "neighbor(full)"])
def test_every_rank_gets_its_row_of_the_matrix(text, compressor):
    """On four ranks the weights are halves and quarters, so that casts are exact as well."""
    for step in range(2):
        found = run_ranks(4, lambda comm, step=step: combine(comm, text, 333, compressor, step=step))
        weights = torch.from_numpy(matrix(exchanges.MENU.make(text).topology, 4, step)).float()
        given, got = (torch.stack([one[k] for one in found]) for k in (0, 2))
        assert torch.equal(got, weights @ given)


@pytest.mark.parametrize("compressor", ["none", "cast"])
def test_two_nodes_that_mix_hold_the_mean_of_all_ranks(compressor):
    text, nodes = "hierarchical(neighbor(one_peer(exp2)))", (0, 0, 1, 1)
    found = run_ranks(4, lambda comm: combine(comm, text, 333, compressor, nodes))
    mean = sum(kept for kept, _, _, _ in found) / 4
    for _, _, out, _ in found:
        assert torch.equal(out, mean)


@pytest.mark.parametrize("compressor", ["none", "cast"])
def test_a_lane_with_mass_keeps_all_of_it(compressor):
    """On a star whose rows would not: the center cuts its mass into quarters, the others into halves."""
    found = run_ranks(4, lambda comm: combine(comm, "neighbor(star(uniform=true))", 333, compressor, lane=MASS))
    given, got = (torch.stack([one[k] for one in found]) for k in (0, 2))
    assert torch.equal(got.sum(dim=0), given.sum(dim=0))


@pytest.mark.parametrize(("size", "text", "compressor"), CARRIED)
def test_an_exchange_never_writes_its_source(text, size, compressor):
    for kept, src, _, _ in on_ranks(size, text, 333, compressor) or ():
        assert torch.equal(kept, src)


@pytest.mark.parametrize(("size", "text", "compressor"), CARRIED)
@pytest.mark.parametrize("numel", [1, 64, 12_345])
def test_counted_bytes_are_the_declared_ones(text, size, compressor, numel):
    layout = Layout((Slot("x", numel),), 4, 0)
    exchange, squeeze = exchanges.MENU.make(text), compressors.MENU.make(compressor)
    rounds = traffic(exchange, squeeze, layout, Chunk(0, 0, numel), Cluster.of_one_host(size))
    for rank, (_, _, _, got) in enumerate(on_ranks(size, text, numel, compressor) or ()):
        declared = [0] * (size + exchange.servers)
        for flow in (flow for flows in rounds for flow in flows if flow.dst == rank):
            declared[flow.src] += flow.nbytes
        if compressor == "threshold":  # declares the most; how much it is depends on the gradients
            assert all(counted <= most for counted, most in zip(got, declared, strict=True))
        else:
            assert got == declared


def check_bytes(text, nodes, numel, step=0):
    rounds = exchanges.MENU.make(text).traffic(4 * numel, Cluster(nodes), step)
    found = run_ranks(len(nodes), lambda comm: combine(comm, text, numel, nodes=nodes, step=step))
    for rank, (kept, src, _, got) in enumerate(found):
        declared = [0] * len(nodes)
        for flow in (flow for flows in rounds for flow in flows if flow.dst == rank):
            declared[flow.src] += flow.nbytes
        assert got == declared, (rank, step)
        assert torch.equal(kept, src)


CHANGING = (
    *("neighbor(one_peer(exp2))", "neighbor(inner_outer)", "window(one_peer(exp2))", "window(inner_outer)"),
    "hierarchical(neighbor(one_peer(exp2)))",
)


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 0, 0, 1, 1, 1), (0, 1, 0, 1), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("text", CHANGING)
def test_counted_bytes_are_the_declared_ones_at_every_step_of_a_period(text, nodes):
    for step in range(exchanges.MENU.make(text).period(Cluster(nodes)) + 1):
        check_bytes(text, nodes, 100, step)


def rounds_of(exchange, cluster, step=0, compressor="none", numel=5000):
    layout = Layout((Slot("x", numel),), 4, 0)
    return traffic(exchange, compressors.MENU.make(compressor), layout, Chunk(0, 0, numel), cluster, step)


@pytest.mark.parametrize("text", CHANGING)
def test_traffic_that_changes_comes_again_after_a_period(text):
    exchange, cluster = exchanges.MENU.make(text), Cluster((0, 0, 0, 1, 1, 1, 2, 2, 2))
    period = exchange.period(cluster)
    steps = [[sorted(flows) for flows in rounds_of(exchange, cluster, step)] for step in range(period)]
    assert any(step != steps[0] for step in steps)
    among = (cluster.count, ()) if text.startswith("hierarchical") else (cluster.size, cluster.nodes)
    rows = [edges(exchange.topology, among[0], step, among[1]).sources for step in range(2 * period)]
    assert rows[:period] == rows[period:]


PLACES = [(0,), (0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1, 1, 1, 2, 2, 2)]
PLACED = [
    (text, compressor, nodes)
    for text, compressor in [*((text, "none") for text in (*TEXTS, *CHANGING)), *GATHERED]
    for nodes in PLACES
    if exchanges.MENU.make(text).servers <= len(nodes)
]


@pytest.mark.parametrize(("text", "compressor", "nodes"), PLACED)
def test_sums_of_a_round_are_those_of_its_flows(text, compressor, nodes):
    exchange, cluster = exchanges.MENU.make(text), Cluster(nodes)
    place = [*nodes, *range(-exchange.servers, 0)]  # every server has a place of its own
    for step in range(exchange.period(cluster)):
        for flows in rounds_of(exchange, cluster, step, compressor):
            received, crossing = [0] * len(place), [0] * len(place)
            for flow in flows:
                received[flow.dst] += flow.nbytes
                crossing[flow.dst] += flow.nbytes * (place[flow.src] != place[flow.dst])
            assert [flows.received().get(rank, 0) for rank in range(len(place))] == received
            assert [flows.crossing().get(rank, 0) for rank in range(len(place))] == crossing


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 0, 1, 1, 2, 2), (0, 1, 0, 1), (0, 1, 2)])
@pytest.mark.parametrize(
    "text", ["hierarchical", "hierarchical(neighbor(ring))", "hierarchical(neighbor(one_peer(exp2)))"]
)
@pytest.mark.parametrize("numel", [1, 64, 12_345])
def test_counted_bytes_between_nodes_are_the_declared_ones(text, nodes, numel):
    check_bytes(text, nodes, numel)


def test_allreduce_moves_twice_n_minus_one_nths_of_the_chunk():
    nbytes = 4 * 64 * 3 * 100
    for size in (2, 3, 4):
        received = [0] * size
        for flows in exchanges.MENU.make("allreduce").traffic(nbytes, Cluster.of_one_host(size)):
            for flow in flows:
                received[flow.dst] += flow.nbytes
        assert received == [2 * (size - 1) * nbytes // size] * size

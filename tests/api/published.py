"""What users of the published decentralized library expect of each operation: the name of its test -> our check of it.

A check runs on every rank, in threads (test_published.py) and in processes (tests/multi/test_published.py). There are
four ranks on two nodes, and rank r holds the value r. On `exp2`, the library's first, it hears r - 1 and r - 2.
"""

import random

import pytest
import torch

import paceline
from paceline.errors import WrongCommand

SIZE, NODES = 4, (0, 0, 1, 1)
SHAPES = [(5,), (3, 4), (2, 3, 4)]
FRACTIONS = [torch.float32, torch.float64, torch.float16]
NUMBERS = [*FRACTIONS, torch.int32, torch.int64, torch.uint8, torch.int8, torch.int16]
CHECKS = {}


def expects(*names):
    """Enter a check under the names of the published tests."""

    def enter(check):
        CHECKS.update(dict.fromkeys(names, check))
        return check

    return enter


def samples(dtypes):
    """Every dtype, with the shapes in turn, and every shape."""
    return [(dtype, SHAPES[k % 3]) for k, dtype in enumerate(dtypes)]


def holds(x, value, shape):
    """Whether all of a tensor is one value, up to the rounding of its dtype."""
    assert tuple(x.shape) == tuple(shape)
    tolerance = 1e-3 if x.dtype == torch.float16 else 1e-5
    assert (x.double() - value).abs().max() <= tolerance, (x.flatten()[0].item(), value)


def sources_of(rank):
    return sorted({(rank - 1) % SIZE, (rank - 2) % SIZE})


def targets_of(rank):
    return sorted({(rank + 1) % SIZE, (rank + 2) % SIZE})


# collectives --------------------------------------------------------------------------------------


@expects("test_broadcast", "test_broadcast_inplace")
def broadcast(rank):
    for root, (dtype, shape) in enumerate(samples(NUMBERS)):
        x = torch.full(shape, rank, dtype=dtype)
        holds(paceline.broadcast(x, root=root % SIZE), root % SIZE, shape)
        holds(x, rank, shape)
        assert paceline.broadcast_(x, root=root % SIZE) is x
        holds(x, root % SIZE, shape)


@expects("test_allreduce_avg", "test_allreduce_avg_inplace", "test_allreduce_sum")
def allreduce(rank):
    for dtype, shape in samples(FRACTIONS):
        x = torch.full(shape, rank, dtype=dtype)
        holds(paceline.allreduce(x), 1.5, shape)
        holds(paceline.allreduce(x, average=False), 6, shape)
        holds(x, rank, shape)
        paceline.allreduce_(x)
        holds(x, 1.5, shape)
    holds(paceline.allreduce(torch.full((5,), rank), average=False), 6, (5,))


@expects("test_allreduce_fusion", "test_allreduce_fusion_inplace")
def many_sums_at_once(rank):
    inputs = [torch.full((3, 4), float(rank + k)) for k in range(8)]
    handles = [paceline.allreduce(x, average=False, wait=False) for x in inputs[:4]]
    handles += [paceline.allreduce_(x, average=False, wait=False) for x in inputs[4:]]
    for k, handle in enumerate(handles):
        holds(handle.wait(), 6 + 4 * k, (3, 4))
    for k, x in enumerate(inputs):
        holds(x, rank + k if k < 4 else 6 + 4 * k, (3, 4))


@expects("test_allgather")
def allgather(rank):
    for dtype, shape in samples(NUMBERS):
        rows = paceline.allgather(torch.full(shape, rank, dtype=dtype))
        assert rows.shape == (SIZE * shape[0], *shape[1:])
        for peer, part in enumerate(rows.chunk(SIZE)):
            holds(part, peer, shape)


@expects("test_allgather_variable_size")
def allgather_of_differing_sizes(rank):
    sizes = [17, 32, 1, 12]
    for dtype, shape in samples(NUMBERS):
        rows = paceline.allgather(torch.full((sizes[rank], *shape[1:]), rank, dtype=dtype))
        for peer, part in enumerate(rows.split(sizes)):
            holds(part, peer, (sizes[peer], *shape[1:]))


# neighbors ----------------------------------------------------------------------------------------


@expects("test_neighbor_allreduce_avg", "test_neighbor_allreduce_dynamic_topo_avg")
def neighbor_mean(rank):
    expected = (rank + sum(sources_of(rank))) / 3
    for dtype, shape in samples(FRACTIONS):
        x = torch.full(shape, rank, dtype=dtype)
        holds(paceline.neighbor_allreduce(x), expected, shape)
        weights = dict.fromkeys(sources_of(rank), 1 / 3)
        holds(
            paceline.neighbor_allreduce_(x, self_weight=1 / 3, src_weights=weights, dst_weights=targets_of(rank)),
            expected,
            shape,
        )
        holds(x, expected, shape)


@expects(
    "test_neighbor_allreduce_sum", "test_neighbor_allreduce_sum_precision", "test_neighbor_allreduce_avg_precision"
)
def tiny_numbers_are_not_rounded(rank):
    tiny = torch.full((3, 4), 2.0**-256, dtype=torch.float64)
    ones = dict.fromkeys(sources_of(rank), 1.0)
    assert torch.equal(paceline.neighbor_allreduce(tiny, self_weight=1.0, src_weights=ones), 3 * tiny)
    assert torch.equal(paceline.neighbor_allreduce(tiny), tiny)
    total = paceline.neighbor_allreduce(torch.full((5,), float(rank)), self_weight=1.0, src_weights=ones)
    assert torch.equal(total, torch.full((5,), float(rank + sum(sources_of(rank)))))


@expects("test_neighbor_allreduce_dynamic_topo_check")
def sides_that_do_not_match(rank):
    for x in (torch.ones(5), torch.ones(2, 3, dtype=torch.float64)):
        with pytest.raises(WrongCommand, match="make both sides name the edge"):
            paceline.neighbor_allreduce(
                x, self_weight=0.0, src_weights={(rank - 1) % SIZE: 1.0}, dst_weights=[(rank + 2) % SIZE]
            )


@expects("test_neighbor_allreduce_dynamic_topo_move", "test_neighbor_allreduce_dynamic_topo_outside_static_topo_move")
def values_move(rank):
    for (dtype, shape), way in zip(samples(FRACTIONS), (1, -1, 1), strict=True):
        x, source = torch.full(shape, rank, dtype=dtype), (rank - way) % SIZE
        moved = paceline.neighbor_allreduce(
            x, self_weight=0.0, src_weights={source: 1.0}, dst_weights=[(rank + way) % SIZE]
        )
        holds(moved, source, shape)


@expects("test_neighbor_allreduce_dynamic_topo_with_empty_send_neighbors")
def some_send_nothing(rank):
    sources, targets = ({rank - 1: 1.0}, []) if rank % 2 else ({}, [rank + 1])
    for dtype, shape in samples(FRACTIONS):
        x = torch.full(shape, rank, dtype=dtype)
        mixed = paceline.neighbor_allreduce(x, self_weight=1.0, src_weights=sources, dst_weights=targets)
        holds(mixed, 2 * rank - 1 if rank % 2 else rank, shape)


@expects(
    "test_neighbor_allreduce_avg_meshgrid_topo",
    "test_neighbor_allreduce_avg_biring_topo",
    "test_neighbor_allreduce_avg_ring_topo",
)
def means_on_grids_and_rings(rank):
    grid = {0: [1, 2], 1: [0, 3], 2: [0, 3], 3: [1, 2]}[rank]
    near = [(rank + 1) % SIZE, (rank - 1) % SIZE]
    for dtype, shape in samples(FRACTIONS):
        x = torch.full(shape, rank, dtype=dtype)
        holds(paceline.neighbor_allreduce(x, topology="grid"), (rank + sum(grid)) / 3, shape)
        holds(paceline.neighbor_allreduce(x, topology="ring"), (rank + sum(near)) / 3, shape)
        holds(paceline.neighbor_allreduce(x, topology="one_way_ring"), (rank + near[1]) / 2, shape)


@expects("test_neighbor_allreduce_avg_star_topo", "test_neighbor_allreduce_weighted_avg")
def means_on_stars(rank):
    for center, (dtype, shape) in enumerate(samples([*FRACTIONS, torch.float32])):
        x = torch.full(shape, rank, dtype=dtype)
        sources = [peer for peer in range(SIZE) if peer != center] if rank == center else [center]
        share = 1 / (1 + len(sources))
        mixed = paceline.neighbor_allreduce(x, self_weight=share, src_weights=dict.fromkeys(sources, share))
        holds(mixed, 1.5 if rank == center else (rank + center) / 2, shape)
        holds(paceline.neighbor_allreduce(x, topology="star"), 0.75 * rank if rank else 1.5, shape)


@expects("test_neighbor_allreduce_dst_weight", "test_neighbor_allreduce_dst_weight_fusion")
def weights_of_the_sender(rank):
    weights = {
        "self_weight": 0.5,
        "src_weights": dict.fromkeys(sources_of(rank), 1.0),
        "dst_weights": dict.fromkeys(targets_of(rank), 0.5),
    }
    handles = [
        paceline.neighbor_allreduce(torch.full((3, 4), float(rank + k)), wait=False, **weights) for k in range(6)
    ]
    for k, handle in enumerate(handles):
        holds(handle.wait(), 0.5 * (rank + sum(sources_of(rank)) + 3 * k), (3, 4))


@expects(
    "test_neighbor_allreduce_fusion",
    "test_neighbor_allreduce_fusion_alot",
    "test_neighbor_allreduce_dynamic_topo_fusion",
)
def many_means_at_once(rank):
    handles = [paceline.neighbor_allreduce(torch.full((5,), float(rank + k)), wait=False) for k in range(12)]
    for k, handle in enumerate(handles):
        holds(handle.wait(), k + (rank + sum(sources_of(rank))) / 3, (5,))


@expects("test_neighbor_allgather", "test_neighbor_allgather_order")
def neighbor_allgather(rank):
    for dtype, shape in samples(NUMBERS):
        rows = paceline.neighbor_allgather(torch.full(shape, rank, dtype=dtype))
        assert rows.shape == (2 * shape[0], *shape[1:])
        for source, part in zip(sources_of(rank), rows.chunk(2), strict=True):
            holds(part, source, shape)


@expects("test_neighbor_allgather_dynamic", "test_neighbor_allgather_dynamic_variable_size")
def neighbor_allgather_of_differing_sizes(rank):
    sizes, peers = [17, 32, 1, 12], [peer for peer in range(SIZE) if peer != rank]
    for dtype, shape in samples(NUMBERS):
        x = torch.full((sizes[rank], *shape[1:]), rank, dtype=dtype)
        rows = paceline.neighbor_allgather(x, src_ranks=peers, dst_ranks=peers)
        for peer, part in zip(peers, rows.split([sizes[peer] for peer in peers]), strict=True):
            holds(part, peer, (sizes[peer], *shape[1:]))


@expects("test_neighbor_allgather_order_dynamic")
def neighbor_allgather_in_the_order_of_the_sources(rank):
    sources = [peer for peer in range(SIZE) if peer != rank]
    random.Random(rank).shuffle(sources)
    for order in (sources, sources[::-1]):
        rows = paceline.neighbor_allgather(torch.tensor([float(rank)]), src_ranks=order, dst_ranks=sources)
        assert rows.tolist() == order


@expects("test_pair_gossip", "test_pair_gossip_weighted")
def pair_gossip(rank):
    partner = rank ^ 1
    for dtype, shape in samples(FRACTIONS):
        x = torch.full(shape, rank, dtype=dtype)
        holds(paceline.pair_gossip(x, partner), (rank + partner) / 2, shape)
        weighed = paceline.pair_gossip(x, partner, self_weight=0.25, pair_weight=0.75)
        holds(weighed, 0.25 * rank + 0.75 * partner, shape)


# nodes --------------------------------------------------------------------------------------------


@expects("test_hier_allreduce", "test_hier_allreduce_inplace")
def sums_inside_a_node(rank):
    expected = 2 * NODES[rank] + 0.5
    for dtype, shape in samples(FRACTIONS[:2]):
        x = torch.full(shape, rank, dtype=dtype)
        holds(paceline.allreduce(x, is_hierarchical_local=True), expected, shape)
        assert paceline.allreduce_(x, is_hierarchical_local=True) is x
        holds(x, expected, shape)


@expects("test_hier_neighbor_allreduce", "test_hier_neighbor_allreduce_fusion")
def nodes_mix(rank):
    for k, (dtype, shape) in enumerate(samples(FRACTIONS[:2])):
        x = torch.full(shape, rank + k, dtype=dtype)
        holds(paceline.hierarchical_neighbor_allreduce(x), 1.5 + k, shape)  # two nodes hear each other


@expects(
    "test_hier_neighbor_allreduce_dynamic_move",
    "test_hier_neighbor_allreduce_dynamic_move_dst_weight",
    "test_hier_neighbor_allreduce_dynamic_move_fusion",
    "test_hier_neighbor_allreduce_dynamic_move_dst_weight_fusion",
)
def means_of_nodes_move(rank):
    peer = 1 - NODES[rank]
    for dtype, shape in samples(FRACTIONS[:2]):
        x = torch.full(shape, rank, dtype=dtype)
        for src, dst in (({peer: 1.0}, [peer]), ({peer: 0.5}, {peer: 2.0})):
            moved = paceline.hierarchical_neighbor_allreduce(
                x, self_weight=0.0, src_machine_weights=src, dst_machine_weights=dst
            )
            holds(moved, 2 * peer + 0.5, shape)
        paceline.hierarchical_neighbor_allreduce_(x, self_weight=0.0, src_machine_weights={peer: 1.0})
        holds(x, 2 * peer + 0.5, shape)

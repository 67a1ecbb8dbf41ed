"""Operations that users of other libraries know, on ranks that are threads, with the values that they expect."""

import pytest
import torch

import paceline
from paceline.errors import CallMismatch, WrongCommand
from tests.api.test_collectives import on_ranks, x_of


def rows_of(rank, dtype=torch.float32):
    """Return rank + 1 rows that hold the rank."""
    return torch.full((rank + 1, 2), rank).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_allgather_joins_differing_first_dimensions(dtype):
    expected = torch.cat([rows_of(rank, dtype) for rank in range(3)])
    for result in on_ranks(3, lambda rank: paceline.allgather(rows_of(rank, dtype))):
        assert result.dtype == dtype
        assert torch.equal(result, expected)


def test_allgather_takes_numbers_without_dimensions_and_ranks_without_rows():
    assert on_ranks(3, lambda rank: paceline.allgather(torch.tensor(rank)).tolist()) == [[0, 1, 2]] * 3
    empty = on_ranks(2, lambda rank: paceline.allgather(torch.ones(3 * rank, 2)).shape)
    assert empty == [(3, 2)] * 2
    assert on_ranks(2, lambda rank: paceline.allgather(torch.ones(0, 2)).shape) == [(0, 2)] * 2


def test_allgather_later_gives_a_handle():
    def work(rank):
        handles = [paceline.allgather(rows_of(rank) + k, wait=False) for k in range(2)]
        return [handle.wait()[:, 0].tolist() for handle in handles]

    assert on_ranks(2, work) == [[[0, 1, 1], [1, 2, 2]]] * 2


def test_allgather_of_unlike_rows_is_refused():
    with pytest.raises(CallMismatch, match=r"rows of \[[23]\] float32.*rows of \[[23]\] float32"):
        on_ranks(2, lambda rank: paceline.allgather(torch.ones(1, 2 + rank)))


def test_neighbor_allgather_on_a_topology_leaves_the_own_tensor_out():
    heard = on_ranks(4, lambda rank: paceline.neighbor_allgather(x_of(rank), topology="ring").tolist())
    assert heard == [[*x_of(a).tolist(), *x_of(b).tolist()] for a, b in [(1, 3), (0, 2), (1, 3), (0, 2)]]


def test_neighbor_allgather_of_differing_sizes_copies_every_bit():
    def work(rank):
        x = rows_of(rank, torch.float64)
        x[0, 0] = (float("nan"), float("inf"), -0.0, 1e-310)[rank]
        return x, paceline.neighbor_allgather(x, topology="exp2")

    results = on_ranks(4, work)
    for rank, (_, heard) in enumerate(results):
        sources = sorted({(rank - 1) % 4, (rank - 2) % 4})
        expected = torch.cat([results[source][0] for source in sources])
        assert torch.equal(heard.view(torch.int64), expected.view(torch.int64))


def test_neighbor_allgather_by_ranks_of_the_step():
    def work(rank):  # rank 0 sends to 1 and 2, rank 1 to 2, rank 2 to nobody
        dst = [[1, 2], [2], []][rank]
        src = [[], [0], [0, 1]][rank]
        return [
            paceline.neighbor_allgather(rows_of(rank, torch.int32), src_ranks=src, dst_ranks=dst).tolist(),
            paceline.neighbor_allgather(rows_of(rank, torch.int32), dst_ranks=dst).tolist(),
        ]

    zero, one = [[0, 0]], [[1, 1], [1, 1]]
    assert on_ranks(3, work) == [[[], []], [zero, zero], [zero + one, zero + one]]


def test_neighbor_allgather_with_an_edge_of_one_side_raises_on_all_ranks():
    def work(rank):
        with pytest.raises(WrongCommand, match="neighbor_allgather: rank 0 listens to rank 1, which does not send"):
            paceline.neighbor_allgather(x_of(rank), src_ranks=[1] if rank == 0 else [], dst_ranks=[])
        return True

    assert on_ranks(3, work) == [True] * 3


def test_neighbor_allgather_at_different_steps_is_refused():
    with pytest.raises(CallMismatch, match=r"step [01].*step [01]"):
        on_ranks(2, lambda rank: paceline.neighbor_allgather(x_of(rank), topology="one_peer(exp2)", step=rank))


def test_allreduce_inside_a_node():
    def work(rank):
        mean = paceline.allreduce(x_of(rank), is_hierarchical_local=True)
        total = paceline.allreduce(torch.tensor([rank]), average=False, is_hierarchical_local=True)
        return mean[0].item(), total.item(), paceline.allreduce(x_of(rank))[0].item()

    nodes = (0, 0, 0, 1, 1)
    assert on_ranks(5, work, nodes) == [(1.0, 3, 2.0)] * 3 + [(3.5, 7, 2.0)] * 2
    assert on_ranks(2, work) == [(0.5, 1, 0.5)] * 2


def test_in_place_calls_write_into_their_input():
    def work(rank):
        peer = 1 - rank
        weights = {"self_weight": 0.25, "src_weights": {peer: 0.75}, "dst_weights": [peer]}
        calls = [
            lambda x: paceline.allreduce_(x),
            lambda x: paceline.allreduce_(x, average=False, wait=False).wait(),
            lambda x: paceline.broadcast_(x, 1),
            lambda x: paceline.neighbor_allreduce_(x, **weights),
            lambda x: paceline.hierarchical_neighbor_allreduce_(x),
        ]
        values = []
        for call in calls:
            x = torch.nn.Parameter(torch.tensor([[1.0 + rank, 7.0], [3.0, 5.0]])).t()  # with history, not contiguous
            assert call(x) is x
            values.append(x[0, 0].item())
        return values

    assert on_ranks(2, work) == [[1.5, 3.0, 2.0, 1.75, 1.5], [1.5, 3.0, 2.0, 1.25, 1.5]]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [0.5, 0.5, 2.0]),
        ({"self_weight": 0.25}, [0.75, 0.25, 2.0]),
        ({"pair_weight": 0.25}, [0.25, 0.75, 2.0]),
        ({"self_weight": 1.0, "pair_weight": 1.0}, [1.0, 1.0, 2.0]),
    ],
)
def test_pair_gossip_mixes_two_ranks_and_leaves_the_third(weights, expected):
    partner = (1, 0, None)
    assert on_ranks(3, lambda rank: paceline.pair_gossip(x_of(rank), partner[rank], **weights)[0].item()) == expected


def test_pair_gossip_needs_two_ranks_that_name_each_other():
    def work(rank):
        with pytest.raises(WrongCommand, match="pair_gossip: rank 0 listens to rank 1, which does not send to it"):
            paceline.pair_gossip(x_of(rank), (1, 2, 1)[rank])
        return True

    assert on_ranks(3, work) == [True] * 3


NODES = (0, 0, 1, 1, 2, 2)


def test_machine_weights_mix_the_means_of_nodes():
    def work(rank):  # means are 0.5, 2.5, 4.5; node k hears node k - 1
        node = NODES[rank]
        mix = paceline.hierarchical_neighbor_allreduce(
            x_of(rank),
            self_weight=0.25,
            src_machine_weights={(node - 1) % 3: 0.5},
            dst_machine_weights={(node + 1) % 3: 2.0},
        )
        kept = paceline.hierarchical_neighbor_allreduce(
            x_of(rank), src_machine_weights={(node - 1) % 3: 0.5}, dst_machine_weights=[(node + 1) % 3]
        )
        return mix.tolist(), kept[0].item()

    values = on_ranks(6, work, NODES)
    firsts = [0.25 * 0.5 + 4.5, 0.25 * 2.5 + 0.5, 0.25 * 4.5 + 2.5]
    expected = [([first, 10 * first], kept) for first, kept in zip(firsts, [2.5, 1.5, 3.5], strict=True)]
    assert values == [expected[node] for node in NODES]


def test_machine_weights_that_do_not_match_raise_on_all_ranks():
    def work(rank):
        with pytest.raises(WrongCommand, match="node 0 listens to node 1, which does not send to it"):
            paceline.hierarchical_neighbor_allreduce(
                x_of(rank), src_machine_weights={1: 0.5} if rank < 2 else {}, dst_machine_weights={}
            )
        with pytest.raises(WrongCommand, match="rank 0 and rank 1 are on one node and pass different weights"):
            paceline.hierarchical_neighbor_allreduce(x_of(rank), self_weight=float(rank), src_machine_weights={})
        return True

    assert on_ranks(4, work, (0, 0, 1, 1)) == [True] * 4


def test_a_window_can_start_with_the_own_value_and_update_without_dividing():
    def work(rank):
        win = paceline.window(x_of(rank), topology="ring", zero_init=False)
        before = win.versions()
        own = win.update(self_weight=0.5, src_weights=dict.fromkeys(win.sources, 0.25))[0].item()
        paceline.allreduce(torch.zeros(1))  # all have read
        win.put(x_of(rank))
        paceline.allreduce(torch.zeros(1))  # all have put
        total = win.update(self_weight=1.0, src_weights=dict.fromkeys(win.sources, 1.0), normalize=False)
        mass = win.p
        win.free()
        return sorted(before.values()), own, total[0].item(), mass

    sums = [0 + 1 + 3, 1 + 0 + 2, 2 + 1 + 3, 3 + 2 + 0]
    assert on_ranks(4, work) == [([0, 0], float(rank), float(sums[rank]), 3.0) for rank in range(4)]


def test_an_empty_window_updates_without_dividing():
    def work(rank):
        win = paceline.window(torch.tensor([8.0]), topology="ring")
        return win.update(self_weight=0.5, src_weights={1 - rank: 0.5}, normalize=False).item(), win.p

    assert on_ranks(2, work) == [(4.0, 0.5)] * 2


def test_windows_of_unlike_first_values_are_refused():
    def work(rank):
        with pytest.raises(WrongCommand, match="zero_init"):
            paceline.window(torch.ones(2), zero_init=rank == 0)
        return True

    assert on_ranks(2, work) == [True] * 2


def model_of(rank):
    """Return a model that holds the rank; seeds are of no use here, because threads share one generator."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, rank + 0.5)
    return model


@pytest.mark.parametrize("choose", [lambda model: model.state_dict(), lambda model: model.named_parameters()])
def test_broadcast_parameters(choose):
    def work(rank):
        model = model_of(rank)
        paceline.broadcast_parameters(choose(model), root_rank=1)
        return torch.equal(model[0].weight, model_of(1)[0].weight)

    assert on_ranks(3, work) == [True] * 3


def test_broadcast_of_unlike_parameters_is_refused():
    with pytest.raises(WrongCommand, match=r"ranks pass \[1, 2\] tensors"):
        on_ranks(2, lambda rank: paceline.broadcast_parameters([("a", torch.ones(1))] * (rank + 1)))
    with pytest.raises(CallMismatch, match=r"parameter a \[[23], [23]\].*parameter a \[[23], [23]\]"):
        on_ranks(2, lambda rank: paceline.broadcast_parameters({"a": torch.ones(2 + rank, 3 - rank)}))


@pytest.mark.parametrize(
    "make",
    [
        lambda ps, lr: torch.optim.SGD(ps, lr=lr, momentum=0.9),
        lambda ps, lr: torch.optim.AdamW(ps, lr=lr, betas=(lr, 0.99)),
    ],
)
def test_broadcast_optimizer_state_to_ranks_that_have_none(make):
    def work(rank):
        model = model_of(7)
        optimizer = make(model.parameters(), 0.5 if rank == 1 else 0.1)
        if rank == 1:
            for _ in range(2):
                model(torch.ones(4, 3)).square().sum().backward()
                optimizer.step()
        paceline.broadcast_optimizer_state(optimizer, root_rank=1)
        return optimizer.state_dict()

    states = on_ranks(3, work)
    for state in states:
        assert state["param_groups"] == states[1]["param_groups"]
        assert state["state"].keys() == states[1]["state"].keys()
        for index, slots in state["state"].items():
            for name, value in slots.items():
                assert torch.equal(value, states[1]["state"][index][name])


def test_an_optimizer_state_that_cannot_be_sent_raises_on_all_ranks():
    def work(rank):
        model = model_of(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["odd"] = object()
        with pytest.raises(WrongCommand, match="broadcast_optimizer_state"):
            paceline.broadcast_optimizer_state(optimizer)
        return True

    assert on_ranks(2, work) == [True] * 2

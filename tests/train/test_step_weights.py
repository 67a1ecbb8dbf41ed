"""pace.set_weights: neighbors and weights of the next steps, set between steps or as a function of the step."""

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import PacelineError, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace


def paced(comm, rule="atc", exchange="neighbor(ring)", lr=0.0, **axes):
    """A model of one number, which is the rank; without a learning rate only mixing moves it."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    run = Run(workers=comm.size, rule=rule, exchange=exchange, **axes)
    pace = Pace(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        comm=comm,
        axes=compose(run).axes,
    )
    with torch.no_grad():
        model.weight.fill_(float(comm.rank))
    return model, pace


def step(model, pace):
    (model.weight * 1.0).sum().backward()
    pace.step()
    return model.weight.item()


def shift(comm, distance, keep=0.5):
    """Hear the rank so far below, and send to the one above."""
    below, above = (comm.rank - distance) % comm.size, (comm.rank + distance) % comm.size
    return {"self_weight": keep, "src_weights": {below: 1 - keep}, "dst_weights": [above]}


def mixed(values, distance, keep=0.5):
    return [keep * x + (1 - keep) * values[(k - distance) % len(values)] for k, x in enumerate(values)]


@pytest.mark.parametrize("rule", ["atc", "awc", "push_sum", "gradient_tracking"])
def test_weights_that_are_set_between_steps_hold_from_the_next_step_on(rule):
    def work(comm):
        model, pace = paced(comm, rule)
        seen = []
        for distance, keep in ((1, 0.5), (2, 0.25), (1, 0.75)):
            pace.set_weights(**shift(comm, distance, keep))
            seen.append(step(model, pace))
        return seen

    expected, values = [], [0.0, 1.0, 2.0, 3.0]
    for distance, keep in ((1, 0.5), (2, 0.25), (1, 0.75)):
        values = mixed(values, distance, keep)
        expected.append(values)
    for seen, after in zip(zip(*run_ranks(4, work), strict=True), expected, strict=True):
        assert list(seen) == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize("rule", ["atc", "awc", "atc(every=2)"])
def test_weights_may_be_a_function_of_the_exchange(rule):
    def work(comm):
        model, pace = paced(comm, rule)
        pace.set_weights(lambda number: shift(comm, 1 + number % 2, 0.25))
        return [step(model, pace) for _ in range(4)]

    values, expected = [0.0, 1.0, 2.0, 3.0], []
    for number in range(2 if "every" in rule else 4):
        values = mixed(values, 1 + number % 2, 0.25)
        expected.append(values)
    ends = list(zip(*run_ranks(4, work), strict=True))
    for seen, after in zip(ends[1::2] if "every" in rule else ends, expected, strict=True):
        assert list(seen) == pytest.approx(after, abs=1e-12)


def test_the_weight_of_an_edge_is_the_product_of_both_ends():
    def work(comm):
        model, pace = paced(comm)
        pace.set_weights(self_weight=0.25, src_weights={1 - comm.rank: 0.5}, dst_weights={1 - comm.rank: 1.5})
        return step(model, pace)

    assert run_ranks(2, work) == [0.75, 0.25]


def test_weights_stay_until_they_are_set_again_and_none_is_the_topology():
    def work(comm):
        model, pace = paced(comm, "awc", "neighbor(full)")
        pace.set_weights(self_weight=1.0, src_weights={}, dst_weights={})
        alone = [step(model, pace) for _ in range(2)]
        pace.set_weights()
        return [*alone, step(model, pace)]

    assert run_ranks(3, work) == [[0, 0, 1], [1, 1, 1], [2, 2, 1]]


def test_awc_trains_as_with_a_topology_of_the_same_weights():
    """The exchange leaves with the first gradient, and every update is that of its step."""

    def work(comm, written):
        model, pace = paced(comm, "awc", "neighbor(ring)", lr=0.1)
        seen = []
        for _ in range(4):
            if written:
                peers = [(comm.rank + 1) % 4, (comm.rank - 1) % 4]
                pace.set_weights(src_weights=dict.fromkeys(peers, 1 / 3), dst_weights=peers)
            (model.weight**2).sum().backward()
            pace.step()
            seen.append(model.weight.item())
        return seen

    for one, two in zip(*(run_ranks(4, lambda comm, w=w: work(comm, w)) for w in (True, False)), strict=True):
        assert one == pytest.approx(two, abs=1e-12)


def test_weights_of_nodes_mix_the_means_of_nodes():
    def work(comm):
        model, pace = paced(comm, "atc", "hierarchical(neighbor(ring))", nodes="2x2")
        node = comm.rank // 2
        pace.set_weights(self_weight=0.75, src_weights={1 - node: 0.25}, dst_weights=[1 - node])
        return step(model, pace)

    def placed(comm):
        comm.placement = (0, 0, 1, 1)
        return work(comm)

    near, far = 0.75 * 0.5 + 0.25 * 2.5, 0.75 * 2.5 + 0.25 * 0.5
    assert run_ranks(4, placed) == pytest.approx([near, near, far, far], abs=1e-12)


REFUSED = {
    "an edge of one side": (
        "atc",
        lambda rank: {"src_weights": {0: 0.5} if rank == 1 else {}, "dst_weights": {}},
        ["rank 1 listens to rank 0, which does not send to it", "make both sides name the edge"],
    ),
    "no such rank": (
        "atc",
        lambda rank: {"src_weights": {7: 0.5} if rank == 1 else {}, "dst_weights": {}},
        ["rank 1 names rank 7, which is not another rank"],
    ),
    "no finite number": (
        "atc",
        lambda rank: {"src_weights": {0: float("nan")} if rank == 1 else {}, "dst_weights": {}},
        ["rank 1 gives rank 0 a weight that is no finite number"],
    ),
    "a sum that is not 1": (
        "atc",
        lambda rank: {"self_weight": 0.5, "src_weights": {1 - rank: 0.4}},
        ["what rank 0 keeps and hears has weights that sum to 0.9, not 1", "leave self_weight out"],
    ),
    "a wrong mean": (
        "atc",
        lambda rank: {"src_weights": {1: 0.5} if rank == 0 else {}},
        ["rank 0 has at itself and at others sum to 0.5, not 1", "push_sum"],
    ),
    "mass that is lost": (
        "push_sum",
        lambda rank: {"self_weight": 0.5, "src_weights": {1 - rank: 0.25}},
        ["rank 0 has at itself and at others sum to 0.75, not 1", "rows and columns that sum to 1"],
    ),
}


def weigh_now(model, pace, weights, rank):
    pace.set_weights(**weights(rank))


def weigh_later(model, pace, weights, rank):
    pace.set_weights(lambda number: weights(rank))
    step(model, pace)


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("later", [False, True])
def test_wrong_weights_raise_on_all_ranks_and_say_what_to_do(case, later):
    rule, weights, words = REFUSED[case]

    def work(comm):
        model, pace = paced(comm, rule)
        act = weigh_later if later else weigh_now
        with pytest.raises(WrongCommand) as refusal:
            act(model, pace, weights, comm.rank)
        return str(refusal.value)

    for text in run_ranks(2, work):
        assert text.startswith("pace.set_weights: ")
        for word in words:
            assert word in text


def test_a_rule_for_symmetric_weights_refuses_others():
    def work(comm):
        _, pace = paced(comm, "exact_diffusion")
        pace.set_weights(**shift(comm, 2, 0.5))  # with 4 ranks, 2 is there and back
        with pytest.raises(WrongCommand, match=r"rank 0 weighs rank 1 by 0, and the reverse is 0\.5; this rule needs"):
            pace.set_weights(**shift(comm, 1, 0.5))

    run_ranks(4, work)


def test_push_sum_takes_columns_that_sum_to_one_and_finds_the_mean():
    """Rank 0 gives to all, the others only to rank 0: rows do not sum to one."""

    def work(comm):
        model, pace = paced(comm, "push_sum", "neighbor(star)")
        sources = {0: 1 / 3} if comm.rank else {1: 0.5, 2: 0.5}
        pace.set_weights(self_weight=0.5 if comm.rank else 1 / 3, src_weights=sources)
        for _ in range(60):
            step(model, pace)
        return model.weight.item()

    assert run_ranks(3, work) == pytest.approx([1.0] * 3, abs=1e-9)


def test_what_cannot_be_weighed_is_refused():
    def work(comm):
        for exchange in ("allreduce", "window(ring)", "hierarchical(1x2)"):
            _, pace = paced(comm, "atc", exchange)
            with pytest.raises(WrongCommand, match=r"does not mix with neighbors.*exchange='neighbor\(exp2\)'"):
                pace.set_weights(self_weight=1.0)
            pace.close()
        model, pace = paced(comm)
        with pytest.raises(WrongCommand, match="a function and with weights"):
            pace.set_weights(lambda step: {}, self_weight=1.0)
        pace.set_weights(lambda step: {"weights": {}})
        with pytest.raises(WrongCommand, match=r"returns weights.*return a dict with self_weight"):
            step(model, pace)

    run_ranks(2, work)


def test_a_rank_that_sets_no_weights_is_found():
    def work(comm):
        model, pace = paced(comm)
        if comm.rank == 0:
            pace.set_weights(**shift(comm, 1))
        step(model, pace)

    with pytest.raises(PacelineError):
        run_ranks(2, work)

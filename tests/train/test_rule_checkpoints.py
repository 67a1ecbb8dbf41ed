"""Parameters that are loaded or changed between steps, and checkpoints, with rules that let replicas differ.

Rank r has the parabola h (x - c)^2 / 2 with h = c = r + 1; four ranks have their optimum at 3.
"""

import copy
import logging

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.pace import Pace

RULES = {
    "grad": "allreduce",
    "atc": "neighbor(ring)",
    "awc": "neighbor(ring)",
    "exact_diffusion": "neighbor(ring)",
    "gradient_tracking": "neighbor(ring)",
    "push_sum": "neighbor(star)",
    "push_diging": "neighbor(star)",
    "diloco(every=2)": "allreduce",
}
UNBIASED = ["exact_diffusion", "gradient_tracking"]


class Parabola:
    """A model of one number, wrapped; `start` is what it holds before that."""

    def __init__(self, comm, rule, exchange, start=0.0, lr=0.1):
        self.h = self.c = comm.rank + 1.0
        self.model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.constant_(self.model.weight, start)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        axes = compose(Run(workers=comm.size, rule=rule, exchange=exchange, schedule="bsp")).axes
        self.pace = Pace(self.model, self.optimizer, comm=comm, axes=axes)

    def train(self, steps):
        for _ in range(steps):
            (self.h * (self.model.weight - self.c) ** 2 / 2).sum().backward()
            self.pace.step()
        return self

    def load(self, value):
        self.model.load_state_dict({"weight": torch.full((1, 1), value, dtype=torch.float64)})
        return self

    @property
    def value(self):
        return self.model.weight.item()

    def saved(self):
        return copy.deepcopy((self.value, self.pace.state_dict()))


def gathered(comm, table, mine):
    """What every rank put into the table, by rank."""
    table[comm.rank] = mine
    comm.barrier()
    return table


def resumed(comm, rule, exchange, saved, *, load="after wrap"):
    value, state = saved
    run = Parabola(comm, rule, exchange, start=value if load == "before wrap" else 0.0)
    if load == "after wrap":
        run.load(value)
    run.pace.load_state_dict(copy.deepcopy(state))
    return run


def ranks(work):
    return run_ranks(4, work)


@pytest.mark.parametrize("rule", RULES)
def test_a_model_that_is_loaded_after_wrap_trains_like_one_that_was_loaded_before(rule):
    exchange = RULES[rule]
    before = ranks(lambda comm: Parabola(comm, rule, exchange, start=2.9).train(5).value)
    after = ranks(lambda comm: Parabola(comm, rule, exchange).load(2.9).train(5).value)
    assert after == before


def test_a_state_of_no_step_does_not_fix_where_diloco_begins():
    def work(comm):
        run = Parabola(comm, "diloco(every=2)", "allreduce")
        run.pace.load_state_dict(run.pace.state_dict())
        return run.load(2.9).train(4).value

    assert ranks(work) == ranks(lambda comm: Parabola(comm, "diloco(every=2)", "allreduce", start=2.9).train(4).value)


@pytest.mark.parametrize("exchange", ["neighbor(ring)", "neighbor(star)", "allreduce", "window(ring)"])
def test_awc_adds_what_was_done_to_parameters_while_they_travelled(exchange):
    """Without steps of the optimizer all that moves parameters is mixing, and the change."""

    def work(comm, change):
        run = Parabola(comm, "awc", exchange, lr=0.0).load(float(comm.rank)).train(1)
        comm.barrier()
        sent = run.value
        with torch.no_grad():
            run.model.weight.data += change(comm.rank)  # .data: no version counter tells of it
        run.train(1)
        comm.barrier()
        return sent, run.value

    plain = ranks(lambda comm: work(comm, lambda rank: 0.0))
    moved = ranks(lambda comm: work(comm, lambda rank: 100.0 * rank))
    if exchange == "window(ring)":  # what has arrived depends on the threads; the change is there all the same
        assert [value // 100 for _, value in moved] == [0, 1, 2, 3]
        return
    expected = [value + 100.0 * rank for rank, (_, value) in enumerate(plain)]
    assert [value for _, value in moved] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("exchange", ["neighbor(ring)", "allreduce"])
def test_awc_finds_no_change_where_there_is_none(exchange):
    def work(comm):
        run, seen = Parabola(comm, "awc", exchange, lr=0.07), []
        for _ in range(20):
            run.train(1)
            seen.append(run.pace.duty._changes())
        return seen

    assert ranks(work) == [[{}] * 20] * 4


@pytest.mark.parametrize("rule", ["atc", "push_sum", "exact_diffusion", "awc"])
def test_a_model_that_is_loaded_between_steps_is_the_one_that_trains_on(rule):
    """All ranks load 100, and take no steps of the optimizer any more: they stay where they were put."""

    def work(comm):
        run = Parabola(comm, rule, RULES[rule]).train(7).load(100.0)
        run.optimizer.param_groups[0]["lr"] = 0.0
        return run.train(60).value

    # What combining still owes is small beside 100, and its sum over ranks is zero.
    values = ranks(work)
    assert values == pytest.approx([100.0] * 4, abs=0.5)
    if rule != "push_sum":
        assert sum(values) / 4 == pytest.approx(100.0, abs=1e-9)


def test_a_clamp_between_steps_holds_with_push_sum():
    def work(comm):
        run = Parabola(comm, "push_sum", "neighbor(star)").train(5)
        run.optimizer.param_groups[0]["lr"] = 0.0
        with torch.no_grad():
            run.model.weight.clamp_(min=50.0)
        return run.train(5).value

    assert ranks(work) == pytest.approx([50.0] * 4, abs=1e-12)


@pytest.mark.parametrize("rule", UNBIASED)
@pytest.mark.parametrize("load", ["before wrap", "after wrap"])
@pytest.mark.parametrize("file", ["rank 0's", "own"])
def test_a_resumed_run_still_has_the_right_optimum(rule, load, file):
    table = {}

    def work(comm):
        # after 5 steps ranks still differ, so that rank 0's model on all is not what they had
        every = gathered(comm, table, Parabola(comm, rule, "neighbor(ring)").train(5).saved())
        saved = every[0 if file == "rank 0's" else comm.rank]
        return resumed(comm, rule, "neighbor(ring)", saved, load=load).train(400).value

    assert ranks(work) == pytest.approx([3.0] * 4, abs=1e-8)


@pytest.mark.parametrize("rule", [*UNBIASED, "push_sum"])
def test_with_own_files_a_resumed_run_goes_on_as_if_nothing_had_happened(rule):
    exchange = RULES[rule]

    def halves(comm):
        return resumed(comm, rule, exchange, Parabola(comm, rule, exchange).train(5).saved()).train(5).value

    assert ranks(halves) == ranks(lambda comm: Parabola(comm, rule, exchange).train(10).value)


@pytest.mark.parametrize("rule", [*UNBIASED, "push_sum"])
def test_with_the_file_of_rank_0_the_rule_starts_afresh_and_says_so(rule, caplog):
    exchange, table = RULES[rule], {}

    def work(comm):
        saved = gathered(comm, table, Parabola(comm, rule, exchange).train(5).saved())[0]
        return resumed(comm, rule, exchange, saved).train(5).value

    with caplog.at_level(logging.WARNING, logger="paceline"):
        found = ranks(work)
    assert found == ranks(lambda comm: Parabola(comm, rule, exchange, start=table[0][0]).train(5).value)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "3 of 4 ranks hold a state that is not their own of one step"
    ]


@pytest.mark.parametrize("rule", [*UNBIASED, "push_sum"])
def test_one_wrong_file_makes_all_ranks_start_afresh(rule):
    """Of another rank, of another number of ranks, of another step, or of a time when states did not say whose."""
    exchange = RULES[rule]

    def work(comm, spoil):
        run = Parabola(comm, rule, exchange).train(5)
        value, state = run.saved()
        if comm.rank == 2:
            spoil(state["rule"])
        again = resumed(comm, rule, exchange, (value, state))
        kept = again.pace.duty.state()
        return kept.get("correction"), kept.get("q"), kept.get("last"), kept.get("masses")

    fresh = {"exact_diffusion": ([], None, None, None), "gradient_tracking": (None, [], [], None)}
    for spoil in (
        lambda state: state.update(rank=1),
        lambda state: state.update(size=8),
        lambda state: state.update(steps=4),
        lambda state: (state.pop("rank"), state.pop("size")),
    ):
        expected = fresh.get(rule, (None, None, None, [1.0]))
        assert ranks(lambda comm, spoil=spoil: work(comm, spoil)) == [expected] * 4


def unread(pace):
    """The mass in each buffer of this rank that nobody has read yet."""
    found = pace.state_dict()["engines"][0]["channel"]["arrived"]
    return [float(tensor[-1]) for buffers in found.values() for tensor in buffers.values()]


def test_masses_that_start_afresh_leave_nothing_in_windows():
    """Otherwise what rank 0 had not read would be there on every rank, on top of a mass of one."""
    table = {}

    def work(comm):
        run = Parabola(comm, "push_sum", "window(ring)").train(1)
        comm.barrier()
        if comm.rank == 1:
            run.train(2)  # reads all its mass, then gives of it to rank 0, which does not look
        comm.barrier()
        if comm.rank == 0:
            assert unread(run.pace)
        saved = gathered(comm, table, run.saved())[0]
        again = resumed(comm, "push_sum", "window(ring)", saved).train(3)
        comm.barrier()
        return again.pace.duty.p + sum(unread(again.pace))

    assert sum(ranks(work)) == pytest.approx(4.0, abs=1e-12)


@pytest.mark.parametrize("rule", ["atc", "awc", "atc(every=2)", "awc(every=2)"])
@pytest.mark.parametrize("cut", [1, 3, 4])
def test_a_topology_that_changes_goes_on_where_it_was(rule, cut):
    exchange = "neighbor(one_peer(exp2))"

    def halves(comm):
        return resumed(comm, rule, exchange, Parabola(comm, rule, exchange).train(cut).saved()).train(7 - cut).value

    assert ranks(halves) == ranks(lambda comm: Parabola(comm, rule, exchange).train(7).value)

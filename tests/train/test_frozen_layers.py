"""A layer that is frozen after wrap does not change, even if a rule or an optimizer still holds updates for it.

All ranks have the same data, so that averaging over ranks moves nothing either: half and half of a number is itself.
"""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy import rules
from paceline.train.pace import Pace
from paceline.train.planning import WATCHED
from tests.train.problems import batches, flat, loss_of, mlp

EXCHANGES = {"consensus": "allreduce", "neighbors": "neighbor(star)"}
FEEDBACK = {"compress": "feedback(topk(ratio=0.1))", "optimizer": "sgd(lr=0.1)", "model": "mlp"}
MOVED = WATCHED + 3  # steps: those that measure, and some that cross


def axes_of(rule):
    text = "diloco(every=2)" if rule == "diloco" else rule
    return {"rule": text, "exchange": EXCHANGES.get(rules.MENU.make(rule).needs, "neighbor(ring)")}


# To servers a frozen layer is one whose gradient is zero.
LOCAL = [axes_of(rule) for rule in rules.MENU.names() if rule != "server"]
OWED = [{**FEEDBACK, "schedule": schedule} for schedule in ("bsp", "wfbp", "priority")]


class Frozen:
    """Trained for some steps, with weight decay and momentum; then its first layer is frozen."""

    def __init__(self, comm, axes, *, finish=True):
        self.model = mlp()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        self.pace = Pace(self.model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, **axes)).axes)
        self.train(MOVED + MOVED % 2)
        if finish:
            self.pace.finish()
        self.model[0].requires_grad_(False)

    def train(self, steps):
        for x, y in batches(steps=steps):
            loss_of(self.model, x, y).backward()
            self.pace.step()

    def layers(self):
        self.pace.finish()
        return flat(self.model[0]), flat(self.model[2])


@pytest.mark.parametrize("axes", [*LOCAL, *OWED], ids=lambda axes: "-".join(axes.values()))
def test_a_frozen_layer_keeps_its_values_until_it_is_unfrozen(axes):
    def work(comm):
        run = Frozen(comm, axes)
        before = run.layers()
        run.train(4)
        frozen = run.layers()
        run.model[0].requires_grad_(True)
        run.train(2)
        return before, frozen, run.layers()

    for before, frozen, after in run_ranks(2, work):
        assert torch.equal(before[0], frozen[0])
        assert not torch.equal(before[1], frozen[1]), "the other layer trains on"
        assert not torch.equal(frozen[0], after[0])


@pytest.mark.parametrize("schedule", ["priority", "dear"])
def test_a_step_that_is_under_way_when_a_layer_is_frozen_still_counts(schedule):
    def work(comm, schedule):
        run = Frozen(comm, {"schedule": schedule}, finish=False)
        run.train(2)
        return torch.cat(run.layers())

    expected = run_ranks(2, lambda comm: work(comm, "bsp"))
    for weights in run_ranks(2, lambda comm: work(comm, schedule)):
        assert (weights - expected[0]).abs().max() <= 1e-6  # chunks cut elsewhere may round differently


def test_ranks_still_agree_on_a_layer_that_diloco_freezes_between_outer_steps():
    """Each has made a local step of its own by then: the mean of these is where they meet, and stay."""

    def work(comm):
        model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        torch.nn.init.zeros_(model.weight)
        other = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
        both = torch.nn.Sequential(model, other)
        axes = compose(Run(workers=2, rule="diloco(every=4)", exchange="allreduce")).axes
        pace = Pace(both, torch.optim.SGD(both.parameters(), lr=0.1), comm=comm, axes=axes)
        seen = []
        for step in range(12):
            model.requires_grad_(step < 5)
            ((model.weight - comm.rank - 1) ** 2 + other.weight**2).sum().backward()
            pace.step()
            seen.append(model.weight.item())
        return seen

    one, two = run_ranks(2, work)
    assert one[6] != two[6]
    assert one[7] == two[7] == pytest.approx((one[6] + two[6]) / 2, abs=1e-12)
    assert one[8:] == two[8:] == [one[7]] * 4

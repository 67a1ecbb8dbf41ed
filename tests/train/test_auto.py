"""Schedule auto tries priority and dear in one training: the engine changes its exchange, and nothing else changes."""

import copy
import random
import time

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.schedules.auto import Auto
from paceline.train.pace import Pace
from paceline.train.planning import TRIAL, WATCHED
from tests.train.problems import batches, flat, loss_of, mlp
from tests.train.test_planning import fake_clock

AUTO = "auto(crossing=true)"
NAMES = [str(schedule) for schedule in Auto(crossing=True).candidates()]
FIRST = WATCHED + 1  # the first step of the first trial
END = FIRST + TRIAL * len(NAMES)
STEPS = END + 4
CHANNELS = {"priority": "AllReduceChannel", "dear": "HalvesChannel"}


def wrapped(comm, schedule, best="", dtype=torch.float32, **axes):
    """Return a Pace whose clock makes schedule `best` the fastest."""
    model, engines = mlp(dtype), []
    clock = fake_clock(lambda: engines[0].schedule if engines else None, {best: 0.5})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    composed = compose(Run(workers=comm.size, schedule=schedule, **axes))
    pace = Pace(model, optimizer, comm=comm, axes=composed.axes, clock=clock)
    engines += pace.engines
    return pace


def train(pace, first=0, steps=STEPS, look=None):
    dtype = next(pace.model.parameters()).dtype
    for x, y in list(batches(dtype, steps=steps))[first:]:
        share = len(x) // pace.comm.size
        mine = slice(pace.comm.rank * share, (pace.comm.rank + 1) * share)
        loss_of(pace.model, x[mine], y[mine]).backward()
        pace.step()
        if look is not None:
            look(pace)
    pace.finish()
    return flat(pace.model)


def state_of(pace):
    engine = pace.engines[0]
    return str(engine.schedule), type(engine.channel).__name__, engine.arenas[0].shared


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("best", ["priority", "dear", "dear(mb=2.5)"])
def test_weights_are_those_of_the_schedule_that_was_chosen(size, best):
    def work(comm, schedule, best=""):
        pace = wrapped(comm, schedule, best, torch.float64)
        return train(pace), pace.engines[0].tuning

    expected = run_ranks(size, lambda comm: work(comm, best)[0])
    for weights, tuning in run_ranks(size, lambda comm: work(comm, AUTO, best)):
        assert tuning["chosen"] == best
        assert list(tuning["seconds"]) == NAMES
        assert (weights - expected[0]).abs().max() <= 1e-12


@pytest.mark.parametrize("best", ["priority", "dear"])
def test_every_trial_uses_the_exchange_of_its_schedule(best):
    def work(comm):
        seen = []
        train(wrapped(comm, AUTO, best), look=lambda pace: seen.append(state_of(pace)))
        return seen

    trials = [name for name in NAMES for _ in range(TRIAL)]
    # a new plan is made at the end of a step
    expected = [AUTO] * (FIRST - 1) + trials + [best] * (STEPS - END + 1)
    for seen in run_ranks(2, work):
        assert [name for name, _, _ in seen] == expected
        for name, channel, shared in seen:
            kind = "dear" if name.startswith("dear") else "priority"
            assert channel == CHANNELS[kind]
            assert shared == (kind == "priority"), "the two phases write results of each rank"


def hurried(comm, schedule, best):
    """Train on ranks that are never at the same place; return the units in the order in which they left."""
    dice, log = random.Random(comm.rank), []
    pace = wrapped(comm, schedule, best)
    for module in pace.model:
        module.register_forward_pre_hook(lambda *_: time.sleep(dice.random() * 1e-3))
    pace.record_events(log)
    return train(pace), [tuple(event[2:]) for event in log if event[1] == "leave"]


def test_units_leave_in_one_order_through_all_trials():
    found = run_ranks(3, lambda comm: hurried(comm, AUTO, "dear"))
    expected = run_ranks(3, lambda comm: hurried(comm, "bsp", "")[0])
    for weights, units in found:
        assert units == found[0][1]
        assert len(set(units)) == len(units), "a unit left twice"
        assert (weights - expected[0]).abs().max() <= 1e-6
    halves = {step for step, _, phase in found[0][1] if phase == 1}
    trial = FIRST + TRIAL * NAMES.index("dear")
    assert halves == set(range(trial, STEPS)), "second phases leave in steps of dear only"


@pytest.mark.parametrize("best", ["priority", "dear", "dear(mb=2.5)"])
def test_memory_of_the_candidates_that_lost_is_given_back(best):
    def work(comm, schedule):
        before = len(comm._space._registered), len(comm._space._results)
        pace = wrapped(comm, schedule, best)
        train(pace)
        used = len(comm._space._registered), len(comm._space._results)
        pace.close()
        return used, (len(comm._space._registered), len(comm._space._results)) == before

    # dear alone also keeps the memory with which it measured the link
    (alone, _), _ = run_ranks(2, lambda comm: work(comm, best))
    for used, clean in run_ranks(2, lambda comm: work(comm, AUTO)):
        assert clean
        assert (used[0] <= alone[0], used[1]) == (True, alone[1])


@pytest.mark.parametrize("stop", [FIRST + 2, FIRST + TRIAL * NAMES.index("dear") + 2, END + 2])
@pytest.mark.parametrize("best", ["priority", "dear"])
def test_a_training_goes_on_from_a_checkpoint_in_any_trial(stop, best):
    """A resumed run measures and tries again, and ends with the weights of a run that was never stopped."""

    def work(comm):
        first = wrapped(comm, AUTO, best)
        train(first, steps=stop)
        kept = [part.state_dict() for part in (first.model, first.optimizer, first)]
        again = wrapped(comm, AUTO, best)
        for part, state in zip((again.model, again.optimizer, again), kept, strict=True):
            part.load_state_dict(state)
        return train(again, first=stop, steps=2 * STEPS), again.engines[0].tuning["chosen"]

    def loaded_in_place(comm):
        """Go back to the checkpoint after the choice, in the same Pace."""
        pace = wrapped(comm, AUTO, best)
        train(pace, steps=stop)
        kept = [copy.deepcopy(part.state_dict()) for part in (pace.model, pace.optimizer, pace)]
        train(pace, first=stop, steps=stop + STEPS)
        for part, state in zip((pace.model, pace.optimizer, pace), kept, strict=True):
            part.load_state_dict(state)
        return train(pace, first=stop, steps=2 * STEPS), pace.engines[0].tuning["chosen"]

    expected = run_ranks(2, lambda comm: train(wrapped(comm, "bsp"), steps=2 * STEPS))
    for found in (run_ranks(2, work), run_ranks(2, loaded_in_place)):
        for weights, chosen in found:
            assert chosen == best
            assert (weights - expected[0]).abs().max() <= 1e-6


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"exchange": "ps"}, "this exchange is not a reduce-scatter and an all-gather"),
        ({"compress": "cast(bf16)"}, "between reduce-scatter and all-gather a rank has only a part"),
    ],
    ids=["ps", "cast"],
)
def test_where_dear_is_impossible_the_notes_say_why_and_the_rest_is_tried(axes, why):
    notes = compose(Run(workers=2, schedule=AUTO, **axes)).notes
    [note] = [note for note in notes if "does not try" in note]
    assert note.startswith(f"schedule {AUTO} does not try dear and dear(mb=2.5): {why}")

    def work(comm):
        pace = wrapped(comm, AUTO, "dear", **axes)  # it would win if it were tried
        train(pace)
        return pace.engines[0].tuning

    for tuning in run_ranks(2, work):
        assert list(tuning["seconds"]) == [name for name in NAMES if "dear" not in name]
        assert tuning["chosen"] == "priority"


def test_notes_name_what_is_tried():
    notes = compose(Run(workers=2, schedule=AUTO)).notes
    assert f"schedule {AUTO} tries {', '.join(NAMES[:-1])} and {NAMES[-1]}" in notes
    assert not [note for note in notes if "does not try" in note]
    plain = compose(Run(workers=2, schedule="auto")).notes
    assert "schedule auto tries fusion, mgwfbp, fusion(mb=4), fusion(mb=64) and fusion(mb=1)" in plain
    assert (
        "schedule auto does not try schedules that cross the step: p.grad must be the mean when backward returns; "
        "auto(crossing=true) does" in plain
    )


def test_a_rule_that_does_not_average_gradients_tries_nothing():
    notes = compose(Run(workers=4, rule="atc", exchange="neighbor(ring)", schedule="auto")).notes
    assert not [note for note in notes if "tries" in note or "try" in note]

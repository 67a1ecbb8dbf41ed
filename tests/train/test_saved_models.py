"""A model with hooks of a schedule that crosses the step can be saved whole, and compiled code is refused."""

import copy
import io
import pickle

import pytest
import torch

from paceline.api.wrap import wrap
from paceline.errors import WorkloadError, WrongCommand
from tests.train.problems import batches, flat, loss_of, mlp
from tests.train.test_contract import on_ranks, sgd, share_of

CROSSING = ["dear", "priority"]


def trained(worker, schedule, steps=6):
    model = mlp()
    pace = wrap(model, sgd(model), schedule=schedule)
    for x, y in batches(steps=steps):
        loss_of(model, *share_of(worker, x, y)).backward()
        pace.step()
    return model, pace


@pytest.mark.parametrize("schedule", [*CROSSING, "fusion"])
def test_a_whole_model_can_be_saved_between_steps(schedule):
    def work(worker):
        model, pace = trained(worker, schedule)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        pace.finish()
        x, y = next(batches(steps=1))
        loss_of(loaded, x, y).backward()  # its hooks do nothing
        return flat(loaded), flat(model), pickle.loads(pickle.dumps(model)) is not model

    for loaded, model, _ in on_ranks(work):
        assert torch.equal(loaded, model), "the last update was not in the file"


def test_a_copy_of_a_model_does_not_wait():
    def work(worker):
        model, pace = trained(worker, "dear")
        loss_of(copy.deepcopy(model), *next(batches(steps=1))).backward()
        pace.finish()

    on_ranks(work)


@pytest.mark.parametrize("schedule", CROSSING)
@pytest.mark.parametrize("part", [False, True])
def test_a_compiled_model_is_refused_at_wrap(schedule, part):
    def work(worker):
        model = mlp()
        if part:
            model[0].compile(backend="eager")
        else:
            model = torch.compile(model, backend="eager")
        with pytest.raises(WrongCommand, match=r"torch.compile has made.*--schedule fusion"):
            wrap(model, sgd(model), schedule=schedule)

    on_ranks(work, size=1)


@pytest.mark.parametrize("schedule", CROSSING)
def test_forward_that_goes_around_the_hooks_is_refused(schedule):
    """As code that was compiled before wrap does: it calls functions with parameters, and no module."""

    def work(worker):
        model, _ = trained(worker, schedule)
        x, y = next(batches(steps=1))
        hidden = torch.nn.functional.linear(x, model[0].weight, model[0].bias).tanh()
        scores = torch.nn.functional.linear(hidden, model[2].weight, model[2].bias)
        with pytest.raises(WorkloadError, match=r"before its update had arrived.*torch.compile"):
            torch.nn.functional.cross_entropy(scores, y).backward()

    on_ranks(work, size=1)

"""Forward and backward of a user's own loop, timed by hooks."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.train.pass_timer import PassTimer


class Clock:
    """A clock that the model moves: forward takes 1 second, the loss 10, backward 100."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x, clock, there, back):
        context.clock, context.back = clock, back
        clock.now += there
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.clock.now += context.back
        return gradient, None, None, None


class Model(nn.Module):
    def __init__(self, clock):
        super().__init__()
        self.inner, self.clock = nn.Linear(4, 4), clock

    def forward(self, x):
        return {"logits": Slow.apply(self.inner(x), self.clock, 1.0, 100.0), "hidden": [x]}


@pytest.fixture
def timed():
    clock = Clock()
    model = Model(clock)
    return clock, model, PassTimer(model, clock)


def loss_of(clock, result):
    clock.now += 10.0
    return Slow.apply(result["logits"].sum(), clock, 0.0, 1000.0)


X = torch.ones(2, 4)


def test_forward_is_the_model_and_backward_begins_at_its_output(timed):
    clock, model, timer = timed
    loss_of(clock, model(X)).backward()
    assert timer.take() == {"forward": 1.0, "backward": 100.0}
    assert timer.take() == {"forward": 0.0, "backward": 0.0}


def test_several_passes_of_an_update_add_up(timed):
    clock, model, timer = timed
    for _ in range(2):
        loss_of(clock, model(X)).backward()
    (loss_of(clock, model(X)) + loss_of(clock, model(X))).backward()
    assert timer.take()["forward"] == 4.0
    assert timer.take() == {"forward": 0.0, "backward": 0.0}


def test_evaluation_and_an_error_do_not_count(timed):
    clock, model, timer = timed
    with torch.no_grad():
        model(X)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3))
    loss_of(clock, model(X)).backward()
    assert timer.take() == {"forward": 1.0, "backward": 100.0}


def test_a_backward_that_failed_is_forgotten(timed):
    clock, model, timer = timed
    result = model(X)
    handle = model.inner.weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss_of(clock, result).backward()
    handle.remove()
    clock.now += 1e6
    loss_of(clock, model(X)).backward()
    assert timer.take() == {"forward": 2.0, "backward": 100.0}


def test_work_of_callbacks_at_the_end_of_backward_counts(timed):
    clock, model, timer = timed

    def exchange():
        clock.now += 5.0

    model.inner.weight.register_hook(
        lambda gradient: torch.autograd.Variable._execution_engine.queue_callback(exchange)
    )
    loss_of(clock, model(X)).backward()
    assert timer.take() == {"forward": 1.0, "backward": 105.0}


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_forward_that_a_checkpoint_repeats_is_part_of_backward(timed, reentrant):
    clock, model, timer = timed
    x = X.clone().requires_grad_()
    logits = checkpoint(lambda given: model(given)["logits"], x, use_reentrant=reentrant)
    Slow.apply(logits.sum(), clock, 0.0, 1000.0).backward()
    # A reentrant one runs the model without gradients first: then nothing can be told apart. Another one recomputes
    # only the inner layer, which takes no time here.
    assert timer.take() == ({"forward": 0.0, "backward": 0.0} if reentrant else {"forward": 1.0, "backward": 100.0})


def test_copies_of_the_model_are_not_timed(timed):
    clock, model, timer = timed
    copied = copy.deepcopy(model)
    copied.clock = clock
    loss_of(clock, copied(X)).backward()
    assert timer.take() == {"forward": 0.0, "backward": 0.0}
    assert pickle.loads(pickle.dumps(model))(X)["logits"].shape == (2, 4)


def test_a_compiled_model_has_no_hook_in_its_graph():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    timer, graphs = PassTimer(model), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    compiled(X).sum().backward()
    compiled(X).sum().backward()
    assert len(graphs) == 1
    assert timer.take()["backward"] == 0.0
    torch._dynamo.reset()


def test_after_close_nothing_is_timed(timed):
    clock, model, timer = timed
    timer.close()
    loss_of(clock, model(X)).backward()
    assert timer.take() == {"forward": 0.0, "backward": 0.0}

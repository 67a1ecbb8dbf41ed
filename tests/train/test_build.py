"""Every flag of a run that says how to train has its effect on the training that is built."""

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from tests.train.problems import flat


def trained(steps=0, look=lambda training: None, **settings):
    """The training that a run builds, after some steps of this process alone."""
    run = Run(model="small_cnn(width=4)", image_size=8, batch_size=4, **settings)

    def work(comm):
        training = training_of(compose(run), comm)
        look(training)
        training.steps(steps, Meter())
        return training

    return run_ranks(1, work)[0]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_convolutions_compute_in_the_precision_of_the_run(precision, dtype):
    seen = []

    def look(training):
        training.model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))

    training = trained(1, look, precision=precision)
    assert seen == [dtype]
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}
    assert (training.pace.loss_scale is not None) == (precision == "fp16")


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_weights_and_images_have_the_memory_format_of_the_run(memory_format):
    training = trained(memory_format=memory_format)
    images, _ = next(training.feed)
    for tensor in training.model[0].weight, images, training.place(torch.zeros(2, 3, 8, 8)):
        assert tensor.is_contiguous(memory_format=torch.channels_last) == (memory_format == "channels_last")


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("strategy", ["allreduce", "limit"])
def test_the_model_that_is_called_is_compiled_if_the_run_says_so(strategy, compiled, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model: ("compiled", model))  # torch's own would want a compiler
    training = trained(strategy=strategy, compile=compiled)
    assert training.model == (("compiled", training.pace.model) if compiled else training.pace.model)


@pytest.mark.parametrize("strategy", ["allreduce", "limit"])
def test_an_update_is_as_long_as_the_norm_that_gradients_are_clipped_to(strategy):
    def moved(**settings):
        before = flat(trained(**settings).model)
        return float((flat(trained(1, **settings).model) - before).norm())

    settings = {"strategy": strategy, "optimizer": "sgd(lr=1)"}
    assert moved(**settings, clip_norm=0.01) == pytest.approx(0.01, rel=1e-3)  # what rounding leaves of float32
    assert moved(**settings) > 0.02


@pytest.mark.parametrize("source", ["fake(device)", "fake(cpu)"])
def test_weights_and_samples_are_those_of_the_seed(source):
    def made(seed):
        training = trained(source=source, seed=seed)
        return flat(training.model), next(training.feed)[0]

    for third, again, other in zip(made(3), made(3), made(0), strict=True):
        assert torch.equal(third, again)
        assert not torch.equal(third, other)

"""Replayed compute: gradients in the profiled order, at the profiled times, with the profiled sizes."""

import time

import pytest
import torch

from paceline.comm.thread import run_ranks
from paceline.errors import BadMember, Refused, WorkloadError
from paceline.measure.meter import Meter
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of
from paceline.workload.computes import MENU
from paceline.workload.profile import StepProfile, write
from paceline.workload.replayed import HELD_UP, ReplayedDevice, forward_seconds, replayed


def profile(**changes):
    """Three layers; the embedding is used first and also at the end, so that its gradient is ready last."""
    values = {
        "model": "toy",
        "batch_size": 4,
        "layout": [{"name": n, "numel": k} for n, k in LAYOUT],
        "forward": [0.020, 0.010, 0.010, 0.0],
        "forward_seconds": 0.030,
        "ready": [0.005, 0.010, 0.020, 0.040],
        "backward": 0.040,
    }
    return StepProfile.model_validate({**values, **changes})


LAYOUT = [("head.weight", 60), ("block.0.bias", 7), ("block.0.weight", 300), ("embedding", 1000)]


class Clock:
    """Time that passes only while somebody sleeps, and a little late."""

    def __init__(self, late=0.0):
        self.now, self.late = 100.0, late

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds + self.late


def replay(clock, **changes):
    return replayed(profile(**changes), timeline=ReplayedDevice(clock, clock.sleep))


def test_parameters_have_the_names_and_sizes_of_the_profile():
    named = {name: p.numel() for name, p in replay(Clock()).model.named_parameters()}
    assert named == dict(LAYOUT)


@pytest.mark.parametrize("late", [0.0, 0.0002])
def test_gradients_come_in_the_profiled_order_at_the_profiled_times(late):
    clock, seen = Clock(late), []
    workload = replay(clock)
    for name, parameter in workload.model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: seen.append((name, clock.now)))
    began = clock.now
    loss = workload.loss(workload.model, workload.batch(torch.arange(4)))
    assert clock.now - began == pytest.approx(0.030, abs=1e-9 + 2 * late)
    began = clock.now
    loss.backward()
    assert [name for name, _ in seen] == [name for name, _ in LAYOUT]
    times = [at - began for _, at in seen]
    assert times == pytest.approx([0.005, 0.010, 0.020, 0.040], abs=1e-9 + 2 * late), "lateness must not add up"


def test_a_layer_that_was_held_up_takes_its_whole_time_from_then_on():
    clock = Clock()
    workload = replay(clock)
    head = workload.model.get_submodule("head")
    head.register_forward_pre_hook(lambda *_: clock.sleep(0.5))
    began = clock.now
    workload.loss(workload.model, workload.batch(torch.arange(4)))
    assert clock.now - began == pytest.approx(0.530)


def test_work_between_layers_that_is_short_costs_nothing():
    clock = Clock()
    workload = replay(clock)
    workload.model.get_submodule("head").register_forward_pre_hook(lambda *_: clock.sleep(HELD_UP / 2))
    began = clock.now
    workload.loss(workload.model, workload.batch(torch.arange(4)))
    assert clock.now - began == pytest.approx(0.030)


def test_what_hooks_do_in_backward_overlaps_with_its_waits():
    clock = Clock()
    workload = replay(clock)
    for parameter in workload.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: clock.sleep(0.003))
    loss = workload.loss(workload.model, workload.batch(torch.arange(4)))
    began = clock.now
    loss.backward()
    assert clock.now - began == pytest.approx(0.043)


def test_scale_multiplies_times():
    clock = Clock()
    workload = replayed(profile(), scale=3.0, timeline=ReplayedDevice(clock, clock.sleep))
    began = clock.now
    workload.loss(workload.model, workload.batch(torch.arange(4))).backward()
    assert clock.now - began == pytest.approx(0.210)


def test_a_late_wake_up_is_made_good():
    clock = Clock(late=0.004)
    workload = replay(clock)
    began = clock.now
    workload.loss(workload.model, workload.batch(torch.arange(4)))
    assert clock.now - began == pytest.approx(0.034), "late once, not once per layer"


def test_the_order_of_forward_is_that_of_the_layers():
    assert [slot for slot, _ in forward_seconds(profile())] == [3, 2, 1, 0]
    assert sum(seconds for _, seconds in forward_seconds(profile())) == pytest.approx(0.030)


def test_gradients_differ_among_slots_and_ranks_and_stay_the_same():
    def gradients(rank):
        workload = replayed(profile(), scale=0.0, rank=rank)
        workload.loss(workload.model, workload.batch(torch.arange(4))).backward()
        return [p.grad.clone() for p in workload.model.parameters()]

    first, again, other = gradients(0), gradients(0), gradients(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert first[0].std() > 0


def test_waits_never_end_early():
    workload = replayed(profile())
    began = time.perf_counter()
    workload.loss(workload.model, workload.batch(torch.arange(4))).backward()
    assert time.perf_counter() - began >= 0.070


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "profile.json"
    write(path, profile(model="mlp"))
    return path


@pytest.mark.parametrize("settings", [{}, {"schedule": "wfbp"}, {"schedule": "bsp", "compress": "cast(bf16)"}])
def test_ranks_exchange_real_tensors(file, settings):
    run = Run(workers=2, model="mlp", batch_size=4, compute=f"replay({file}, scale=0.1)", **settings)

    def body(comm):
        training = training_of(compose(run), comm)
        before = sum(comm.received())
        training.steps(3, Meter())
        return torch.cat([p.detach() for p in training.workload.model.parameters()]), sum(comm.received()) - before

    (one, received), (other, _) = run_ranks(2, body)
    assert torch.equal(one, other)
    assert one.abs().max() > 0
    assert received >= 3 * (1367 * (2 if "compress" in settings else 4)) * 0.9


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"model": "resnet50"}, r"the profile is of mlp. try: --model mlp"),
        ({"batch_size": 8}, r"measured with 4 samples. try: --batch-size 4"),
        ({"precision": "bf16"}, "nothing is computed"),
        ({"compute": "replay(/nowhere.json)"}, "/nowhere.json is not a profile"),
        ({"compute": "replay"}, "replay needs file"),
        ({"compute": "real(3)"}, "real takes no settings"),
    ],
)
def test_what_was_not_profiled_is_refused(file, settings, complaint):
    asked = {"model": "mlp", "batch_size": 4, "compute": f"replay({file})", **settings}
    with pytest.raises(Refused, match=complaint):
        compose(Run(**asked))


@pytest.mark.parametrize("scale", ["-1", "inf", "nan"])
def test_a_scale_is_a_number_from_0_on(scale):
    with pytest.raises(BadMember, match="scale"):
        MENU.make(f"replay(p.json, scale={scale})")


def test_other_element_sizes_are_refused():
    with pytest.raises(WorkloadError, match="2 bytes"):
        replayed(profile(itemsize=2))

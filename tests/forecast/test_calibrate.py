"""Layer times from what is known of a model."""

import json
from pathlib import Path

import pytest

from paceline.errors import WrongCommand
from paceline.forecast.calibrate import calibrate
from paceline.forecast.machines import read_machines
from paceline.workload.by_flops import of_flops
from paceline.workload.layouts import layout_of
from paceline.workload.profile import write

PROFILE = Path(__file__).parents[2] / "benchmarks/profiles/resnet50.json"


def test_a_step_time_is_cut_by_flops():
    profile = of_flops("resnet50", 0.3, 64)
    assert profile.forward_seconds == pytest.approx(0.1)
    assert profile.backward == pytest.approx(0.2)
    assert [tensor.name for tensor in profile.layout] == [slot.name for slot in reversed(layout_of("resnet50"))]
    assert list(profile.ready) == sorted(profile.ready)
    assert list(profile.forward) == sorted(profile.forward, reverse=True)


def test_a_device_gives_a_step_and_says_that_it_is_assumed():
    found = calibrate("resnet50", machines=read_machines("machines(device=V100)"), batch=64)
    assert "assumption" in found.source
    assert 0.1 < found.profile.forward_seconds + found.profile.backward < 0.5


def test_a_measured_profile_gets_the_shapes_of_its_model():
    found = calibrate("resnet50", file=PROFILE)
    assert found.profile.layout[-1].shape == (64, 3, 7, 7)


def test_a_record_without_layers_is_cut_by_flops(tmp_path):
    path = tmp_path / "record.json"
    parts = {"forward": 0.2, "backward": 0.5, "update": 0.01, "step": 0.8}
    path.write_text(json.dumps({"schema": 1, "run": {"batch_size": 8}, "profile": None, "breakdown": parts}))
    profile = calibrate("resnet18", file=path).profile
    assert (profile.forward_seconds, profile.backward, profile.update) == (0.2, 0.5, 0.01)
    assert profile.batch_size == 8


def trace_of(steps, gradients, *, kernels=False):
    """A trace as torch.profiler exports it, in microseconds."""
    events = []
    for step in range(steps):
        at = 10_000 * step
        events.append({"ph": "X", "name": f"ProfilerStep#{step}", "ts": at, "dur": 9_000})
        events.append({"ph": "X", "name": "autograd::engine::evaluate_function: Mul", "ts": at + 3_000, "dur": 5})
        for k in range(gradients):
            ts = at + 3_100 + 100 * k
            events.append({"ph": "X", "name": "torch::autograd::AccumulateGrad", "ts": ts, "dur": 10})
            if kernels:
                args = {"correlation": 1000 * step + k}
                events.append({"ph": "X", "cat": "cuda_runtime", "ts": ts - 5, "dur": 1, "args": args})
                events.append({"ph": "X", "cat": "kernel", "ts": ts + 400, "dur": 100, "args": args})
    return {"traceEvents": events}


def test_a_trace_of_the_profiler_gives_ready_times(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace_of(2, 6)))
    profile = calibrate("mlp", file=path).profile
    assert profile.forward_seconds == pytest.approx(3e-3)
    assert profile.ready == pytest.approx([(110 + 100 * k) * 1e-6 for k in range(6)])


def test_on_a_gpu_a_gradient_is_ready_when_its_kernels_have_ended(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace_of(1, 6, kernels=True)))
    profile = calibrate("mlp", file=path).profile
    assert profile.ready[0] == pytest.approx((100 + 500) * 1e-6)


def test_a_trace_of_another_model_is_refused(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace_of(1, 4)))
    with pytest.raises(WrongCommand, match="accumulates 4 gradients; mlp has 6 tensors"):
        calibrate("mlp", file=path)


def test_the_profile_of_another_model_is_refused(tmp_path):
    path = tmp_path / "p.json"
    write(path, of_flops("mlp", 0.1, 8))
    with pytest.raises(WrongCommand, match=r"p\.json is of another model: it has no .* as resnet18 has"):
        calibrate("resnet18", file=path)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "nobody says how long a step takes"),
        ({"step": 0.0}, "--step-time 0"),
        ({"step": float("nan")}, "--step-time nan"),
    ],
)
def test_a_model_without_times_is_refused(settings, complaint):
    with pytest.raises(WrongCommand) as caught:
        calibrate("resnet18", **settings)
    assert complaint in str(caught.value)


def test_a_model_that_is_not_listed_needs_a_profile():
    with pytest.raises(WrongCommand, match="--profile RECORD"):
        calibrate("mine:net", step=0.1)


@pytest.mark.parametrize("text", ["", "not json", "[]", "{}", '{"run": {}, "breakdown": {"forward": "x"}}'])
def test_a_damaged_file_is_refused(tmp_path, text):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(WrongCommand):
        calibrate("mlp", file=path)

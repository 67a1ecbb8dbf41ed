"""Layer times for a forecast: from a profile, a record, a Kineto trace, or from a step time and FLOPs.

source                              forward, backward            layers
a profile, or a record with one     measured                     measured
a record without a profile          its breakdown                by the FLOPs of each layer
a trace of torch.profiler           gradients as accumulated     measured, in the order of registration
a step time, or a device's peak     a third and two thirds       by the FLOPs of each layer
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from paceline.errors import WrongCommand
from paceline.files.read import read_text
from paceline.forecast.machines import Machines, library
from paceline.workload.by_flops import BACKWARD, listed_slots, of_flops
from paceline.workload.layouts import flops_of, layout_of
from paceline.workload.profile import StepProfile
from paceline.workload.profile import read as read_profile

LONGEST = 1e18  # microseconds in a trace


@dataclass(frozen=True)
class Calibration:
    """The times of a model's step, and their source in words."""

    profile: StepProfile
    source: str
    notes: tuple[str, ...] = ()


def calibrate(
    model: str,
    *,
    file: Path | None = None,
    step: float | None = None,
    batch: int = 32,
    precision: str = "fp32",
    machines: Machines | None = None,
) -> Calibration:
    """Return the layer times of a model from the best available source. Raises WrongCommand if there is none."""
    if file is not None:
        return of_file(file, model)
    if step is not None:
        if not 0 < step < 1e6:
            raise WrongCommand(
                f"--step-time {step:g}", why="it is a number of seconds above 0", remedy="--step-time 0.1"
            )
        return Calibration(of_flops(model, step, batch), f"a step of {step:g} s on one device, layers by FLOPs")
    if machines is not None and machines.hardware is not None:
        return of_device(model, machines, batch, precision)
    raise WrongCommand(
        f"forecast of {model}",
        why="nobody says how long a step takes on one worker",
        remedy="--profile RECORD, --step-time SECONDS, or a device: machines(device=V100)",
    )


def of_device(model: str, machines: Machines, batch: int, precision: str) -> Calibration:
    """Return times from the peak FLOPs of a device; they are labelled as an assumption."""
    assert machines.hardware is not None
    peaks = machines.hardware["flops"]
    peak = peaks.get(precision) or peaks["fp32"]
    flops = _flops(model) * (1 + BACKWARD) * batch
    part = library()["utilization"]
    source = (
        f"{flops / 1e9:,.0f} GFLOPs per step at {part:.0%} of the peak of {machines.device}, which is an assumption"
    )
    return Calibration(of_flops(model, flops / (peak * part), batch), source, (source,))


def _flops(model: str) -> int:
    """Return the FLOPs of a forward pass of one sample."""
    listed_slots(model)
    return sum(flops_of(model) or [0])


# files --------------------------------------------------------------------------------------------


def of_file(path: Path, model: str) -> Calibration:
    """Return times from a profile, a record or a trace; tensors get the shapes of the model."""
    values = _json(path)
    if isinstance(values, dict) and "traceEvents" in values:
        return Calibration(of_trace(path, values, model), f"{path}, a trace of torch.profiler")
    if isinstance(values, dict) and "run" in values and not values.get("profile"):
        return of_breakdown(path, values, model)
    profile = read_profile(path)
    _check_model(path, profile, model)
    profile = _with_update(_with_shapes(profile, model), values)
    return Calibration(in_steady_steps(profile, values), f"{path}, measured layer by layer")


def _json(path: Path) -> Any:
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as problem:
        raise WrongCommand(
            f"{path} is no profile, record or trace",
            why=f"it is no JSON: {problem}",
            remedy="paceline run --json FILE writes a record",
        ) from None


def _check_model(path: Path, profile: StepProfile, model: str) -> None:
    """Refuse the profile of another model, if the model is known."""
    slots = layout_of(model)
    if slots is None:
        return
    had = {(tensor.name, tensor.numel) for tensor in profile.layout}
    lacking = [slot for slot in slots if (slot.name, slot.numel) not in had]
    if lacking:
        raise WrongCommand(
            f"{path} is of another model",
            why=f"it has no {lacking[0].name} of {lacking[0].numel:,} elements, as {model} has",
            remedy=f"--model {profile.model or 'THE MODEL OF THE PROFILE'}",
        )


def _with_shapes(profile: StepProfile, model: str) -> StepProfile:
    shapes = {slot.name: slot.shape for slot in layout_of(model) or layout_of(profile.model or "mlp") or ()}
    layout = tuple(
        tensor if tensor.shape else tensor.model_copy(update={"shape": shapes.get(tensor.name, ())})
        for tensor in profile.layout
    )
    return profile.model_copy(update={"layout": layout})


def _with_update(profile: StepProfile, values: Any) -> StepProfile:
    """Return the profile with the seconds of the optimizer from the breakdown of a record."""
    measured = (values.get("breakdown") or {}).get("update") if isinstance(values, dict) else None
    if profile.update or not isinstance(measured, (int, float)) or measured < 0:
        return profile
    return profile.model_copy(update={"update": float(measured)})


def in_steady_steps(profile: StepProfile, values: Any) -> StepProfile:
    """Return the profile with layer times scaled to the passes of the measured steps.

    Layers are timed in the first steps of a run, which are slower. With several workers, backward may include costs of
    the exchange, so only records of one worker are used.
    """
    parts = values.get("breakdown") if isinstance(values, dict) and values.get("workers") == 1 else None
    forward, backward = (_seconds((parts or {}).get(name)) for name in ("forward", "backward"))
    if not (forward and backward and profile.forward_seconds and profile.backward):
        return profile
    before, after = forward / profile.forward_seconds, backward / max(profile.backward, *profile.ready)
    return profile.model_copy(
        update={
            "forward": tuple(before * time for time in profile.forward),
            "forward_seconds": forward,
            "ready": tuple(after * time for time in profile.ready),
            "backward": backward,
        }
    )


def of_breakdown(path: Path, values: dict[str, Any], model: str) -> Calibration:
    """Return times from a record without layer times: its forward and backward, divided by FLOPs."""
    parts = values.get("breakdown") or {}
    forward, backward = (_seconds(parts.get(name)) for name in ("forward", "backward"))
    if not (forward and backward):
        raise WrongCommand(
            f"{path} cannot calibrate a forecast",
            why="the record has neither layer times nor seconds of forward and backward",
            remedy="a record of --schedule mgwfbp has a profile",
        )
    batch = int((values.get("run") or {}).get("batch_size") or 32)
    even = of_flops(model, forward + backward, batch)
    profile = even.model_copy(
        update={
            "forward": tuple(t * forward / even.forward_seconds for t in even.forward),
            "forward_seconds": forward,
            "ready": tuple(t * backward / even.backward for t in even.ready),
            "backward": backward,
            "step": forward + backward,
        }
    )
    return Calibration(_with_update(profile, values), f"{path}, forward and backward measured, layers by FLOPs")


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 < value < float("inf") else 0.0


def of_trace(path: Path, values: dict[str, Any], model: str) -> StepProfile:
    """Return times from a trace of torch.profiler, which shows when each gradient was accumulated.

    On a GPU a gradient is ready when the last kernel has ended that was launched before it was accumulated.
    """
    listed = values["traceEvents"]
    events = [e for e in listed if _is_timed(e)] if isinstance(listed, list) else []
    steps = [e for e in events if str(e.get("name", "")).startswith("ProfilerStep")]
    window = max(steps, key=lambda e: e["ts"]) if steps else None
    inside = [e for e in events if window is None or window["ts"] <= e["ts"] < window["ts"] + window.get("dur", 0)]
    sums = sorted(e["ts"] + e.get("dur", 0) for e in inside if e.get("name") == "torch::autograd::AccumulateGrad")
    nodes = [e["ts"] for e in inside if str(e.get("name", "")).startswith("autograd::engine::evaluate_function")]
    slots = listed_slots(model)
    if not nodes or len(sums) < len(slots):
        raise WrongCommand(
            f"{path} cannot calibrate a forecast",
            why=f"a step of it accumulates {len(sums)} gradients; {model} has {len(slots)} tensors",
            remedy="trace whole steps with torch.profiler, and name their model with --model",
        )
    first = window["ts"] if window is not None else min(e["ts"] for e in inside)
    began, ends = min(nodes), _kernel_ends(events)
    ready = [max(0.0, (ends(at) - began) / 1e6) for at in sums[-len(slots) :]]
    ready = list(accumulate(ready, max))
    forward = max(1e-9, (ends(began) - first) / 1e6)
    backward = max(ready)
    even = of_flops(model, forward * (1 + BACKWARD), 1)
    return even.model_copy(update={"ready": tuple(ready), "backward": backward, "step": forward + backward})


def _is_timed(event: object) -> bool:
    """Return whether the time of an entry of a trace, and its length if it has one, are numbers."""
    if not isinstance(event, dict):
        return False
    times = (event.get("ts"), event.get("dur", 0))
    return all(isinstance(time, (int, float)) and abs(time) < LONGEST for time in times)


def _kernel_ends(events: Sequence[dict[str, Any]]) -> Any:
    """Return a function that maps a host time to the end of the last kernel launched before it, if there is one."""
    ended = {
        e["args"]["correlation"]: e["ts"] + e.get("dur", 0)
        for e in events
        if e.get("cat") == "kernel" and isinstance(e.get("args"), dict) and _number_in(e["args"]) is not None
    }
    launches = sorted(
        (e["ts"], ended[e["args"]["correlation"]])
        for e in events
        if e.get("cat") == "cuda_runtime" and isinstance(e.get("args"), dict) and _number_in(e["args"]) in ended
    )
    times = [ts for ts, _ in launches]
    until = list(accumulate((end for _, end in launches), max))

    def end_of(ts: float) -> float:
        k = bisect_right(times, ts)
        return max(ts, until[k - 1]) if k else ts

    return end_of


def _number_in(args: dict[str, Any]) -> int | None:
    """Return the number that connects a kernel with the call that launched it."""
    number = args.get("correlation")
    return number if isinstance(number, int) else None

"""A model that waits instead of computing, so that real gradients are ready at the times of a profile.

    forward    |-- layer 0 --|-- layer 1 --|-- ... --|      each layer for as long as it took
    backward   |--> ready[0] -> ready[1] -> ...             each gradient at its time after the start of backward

Parameters have the names and sizes of the profile and belong to modules of the same names, so that hooks on modules
and parameters, including those of torch's DDP, fire as usual. Gradients are noise that differs between ranks, so that
compressors have values to select from. Waiting leaves the core to other work, as if an accelerator computed: hooks on
the host overlap with the waits of backward.

In forward, a layer that had to wait for its parameters takes its whole time from then on. In backward, times count
from the start of backward. A wait that ends late shortens the next one, so delays do not add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import WorkloadError
from paceline.types import Workload
from paceline.workload.layouts import read as read_layouts
from paceline.workload.profile import StepProfile

HELD_UP = 1e-3  # seconds; a longer gap between two layers means that forward had to wait
NOISE = 1e-3  # size of gradients, small enough that parameters hardly change
_SPACING = 4099  # elements between the places in the noise where gradients start


class ReplayedDevice:
    """A simulated device: it sleeps until the replayed work would be done."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep):
        self._clock, self._sleep = clock, sleep
        self._at = self._woke = self._backward = 0.0

    def forward(self) -> None:
        self._at = self._woke = self._clock()

    def compute(self, seconds: float) -> None:
        """Wait for a layer that starts when the previous one was due to end, or now if forward had to wait."""
        now = self._clock()
        self._at = (now if now - self._woke > HELD_UP else self._at) + seconds
        self._until(self._at)
        self._woke = self._clock()

    def backward(self) -> None:
        self._backward = self._clock()

    def ready(self, seconds: float) -> None:
        """Wait until `seconds` after the start of backward."""
        self._until(self._backward + seconds)

    def _until(self, moment: float) -> None:
        while (left := moment - self._clock()) > 0:
            self._sleep(left)


class Noise:
    """Gradients of any size, cut from one vector at a different place for every rank and slot."""

    def __init__(self, largest: int, slots: int, rank: int) -> None:
        generator = torch.Generator().manual_seed(20201108 + rank)
        self._pool = torch.randn(largest + _SPACING * slots, generator=generator).mul_(NOISE)

    def of(self, slot: int, like: Tensor) -> Tensor:
        first = _SPACING * slot
        return self._pool[first : first + like.numel()].view_as(like).to(like.dtype, copy=True)


class _Slot(torch.autograd.Function):
    """One tensor of the profile, whose gradient is ready at its time."""

    @staticmethod
    def forward(context: Any, x: Tensor, parameter: Tensor, gradient: Callable[[Tensor], Tensor]) -> Any:
        context.parameter, context.gradient = parameter, gradient
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0], context.gradient(context.parameter), None


class _End(torch.autograd.Function):
    """The first function of backward, which starts its clock."""

    @staticmethod
    def forward(context: Any, x: Tensor, timeline: ReplayedDevice) -> Any:
        context.timeline = timeline
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.timeline.backward()
        return gradients[0], None


class Layer(nn.Module):
    """A module of the profiled model, whose forward takes the time of the tensors that it owns."""

    def __init__(self) -> None:
        super().__init__()
        self._waits: list[Callable[[], None]] = []

    def take_time(self) -> None:
        for wait in self._waits:
            wait()

    def forward(self, x: Tensor) -> Tensor:
        self.take_time()
        return x


class Replayed(Layer):
    """The profiled model: layers in the order of forward, gradients in the order in which they become ready."""

    def __init__(self, profile: StepProfile, *, scale: float, rank: int, timeline: ReplayedDevice) -> None:
        super().__init__()
        self._timeline, self._layers, slots = timeline, list[Layer](), list[Any]()
        noise = Noise(max(tensor.numel for tensor in profile.layout), len(profile.layout), rank)
        for slot, seconds in forward_seconds(profile):
            tensor = profile.layout[slot]
            parameter = nn.Parameter(torch.zeros(tensor.shape or (tensor.numel,)))
            layer, name = self._owner(tensor.name)
            layer.register_parameter(name, parameter)
            layer._waits.append(partial(timeline.compute, scale * seconds))
            slots.append((profile.ready[slot], slot, parameter))
        # autograd walks backward through them, so the last to be ready comes first
        self._slots = [
            (parameter, partial(_gradient, timeline, noise, slot, scale * ready))
            for ready, slot, parameter in sorted(slots, key=lambda entry: entry[:2], reverse=True)
        ]
        self._head = scale * min(profile.forward)

    def _owner(self, name: str) -> tuple[Layer, str]:
        """Return the module that owns a tensor, creating it if needed, and the tensor's name in it."""
        *path, last = name.split(".")
        module: Any = self
        for word in path:
            if word not in module._modules:
                module.add_module(word, Layer())
            module = module._modules[word]
        if not any(module is layer for layer in self._layers):
            self._layers.append(module)
        return module, last

    def forward(self, x: Tensor) -> Tensor:
        self._timeline.forward()
        self._timeline.compute(self._head)
        for layer in self._layers:
            if layer is self:
                self.take_time()
            else:
                x = layer(x)
        for parameter, gradient in self._slots:
            x = _Slot.apply(x, parameter, gradient)
        return _End.apply(x, self._timeline)


def _gradient(timeline: ReplayedDevice, noise: Noise, slot: int, seconds: float, parameter: Tensor) -> Tensor:
    """Create the gradient of a slot and return it when its time has come."""
    gradient = noise.of(slot, parameter)
    timeline.ready(seconds)
    return gradient


def forward_seconds(profile: StepProfile) -> list[tuple[int, float]]:
    """Return slots in the order of forward with the seconds until the next one starts, or until forward ends."""
    # Slots of one layer start together; the one that is ready later in backward comes first in forward.
    order = sorted(range(len(profile.layout)), key=lambda slot: (profile.forward[slot], -profile.ready[slot], -slot))
    begins = [*(profile.forward[slot] for slot in order), profile.forward_seconds]
    return [(slot, max(0.0, after - at)) for slot, (at, after) in zip(order, pairwise(begins), strict=True)]


def replayed(
    profile: StepProfile, *, scale: float = 1.0, rank: int = 0, timeline: ReplayedDevice | None = None
) -> Workload:
    """Return a workload whose steps take `scale` times as long as the profile says."""
    if profile.itemsize != 4:
        raise WorkloadError(f"a profile with {profile.itemsize} bytes per element", why="replay sends fp32")
    model = Replayed(profile, scale=scale, rank=rank, timeline=timeline or ReplayedDevice())

    def batch(ids: Tensor) -> tuple[Tensor]:
        return (torch.zeros(1),)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """Run the model on one element of the batch; the values of samples do not matter."""
        return model(batch[0].flatten()[:1].float()).sum()

    unit = read_layouts().get(profile.model, {}).get("unit", "img")
    return Workload(model, loss, batch, unit)

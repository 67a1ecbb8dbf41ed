"""A model that waits instead of computing: real tensors leave at the times that a profile says.

    forward    |-- layer 0 --|-- layer 1 --|-- ... --|      each layer for as long as it took
    backward   |--> ready[0] -> ready[1] -> ...             each gradient when it was ready, after backward began

Parameters have the names and sizes of the profile and lie in modules of the same names, so that hooks on modules,
on parameters and those of torch's DDP fire as usual. Gradients are noise of this rank, so that compressors have
something to choose from. The waits leave the core to others: it is as if an accelerator computed. What hooks do
on the host overlaps with the waits of backward, as it would beside an accelerator.

In forward a layer that was held up (its parameters were not back yet) takes its whole time from then on. In
backward times are counted from its beginning. In neither do late wake-ups add up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from paceline.bench.profile import StepProfile
from paceline.errors import WorkloadError
from paceline.models.layouts import read as read_layouts
from paceline.types import Workload

HELD_UP = 1e-3  # seconds between the end of one layer and the call of the next that are not the host's own
NOISE = 1e-3  # of gradients, small enough that parameters hardly move
_SPACING = 4099  # elements between the places in the noise where gradients begin


class Timeline:
    """When the pretended device is done with what it was given."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep):
        self._clock, self._sleep = clock, sleep
        self._at = self._woke = self._backward = 0.0

    def forward(self) -> None:
        self._at = self._woke = self._clock()

    def compute(self, seconds: float) -> None:
        """Begins when what came before was due to end, or now if it was held up; a late wake-up is made good."""
        now = self._clock()
        self._at = (now if now - self._woke > HELD_UP else self._at) + seconds
        self._until(self._at)
        self._woke = self._clock()

    def backward(self) -> None:
        self._backward = self._clock()

    def ready(self, seconds: float) -> None:
        """Until so long after backward began."""
        self._until(self._backward + seconds)

    def _until(self, moment: float) -> None:
        while (left := moment - self._clock()) > 0:
            self._sleep(left)


class Noise:
    """Gradients of any size, cut from one vector; every rank and every slot has its own."""

    def __init__(self, largest: int, slots: int, rank: int) -> None:
        generator = torch.Generator().manual_seed(20201108 + rank)
        self._pool = torch.randn(largest + _SPACING * slots, generator=generator).mul_(NOISE)

    def of(self, slot: int, like: Tensor) -> Tensor:
        first = _SPACING * slot
        return self._pool[first : first + like.numel()].view_as(like).to(like.dtype, copy=True)


class _Slot(torch.autograd.Function):
    """One tensor of the profile: has a gradient when its time has come."""

    @staticmethod
    def forward(context: Any, x: Tensor, parameter: Tensor, gradient: Callable[[Tensor], Tensor]) -> Any:
        context.parameter, context.gradient = parameter, gradient
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return gradients[0], context.gradient(context.parameter), None


class _End(torch.autograd.Function):
    """The first that backward meets: its clock starts here."""

    @staticmethod
    def forward(context: Any, x: Tensor, timeline: Timeline) -> Any:
        context.timeline = timeline
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.timeline.backward()
        return gradients[0], None


class Layer(nn.Module):
    """A module of the profiled model; its forward takes the time of the tensors that it owns."""

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
    """The profiled model: layers in the order of its forward, gradients in the order in which they were ready."""

    def __init__(self, profile: StepProfile, *, scale: float, rank: int, timeline: Timeline) -> None:
        super().__init__()
        self._timeline, self._layers, slots = timeline, list[Layer](), list[Any]()
        noise = Noise(max(tensor.numel for tensor in profile.layout), len(profile.layout), rank)
        for slot, seconds in forward_seconds(profile):
            tensor = profile.layout[slot]
            parameter = nn.Parameter(torch.zeros(tensor.numel))
            layer, name = self._owner(tensor.name)
            layer.register_parameter(name, parameter)
            layer._waits.append(partial(timeline.compute, scale * seconds))
            slots.append((profile.ready[slot], slot, parameter))
        # autograd goes backward through them: the last that is ready comes first
        self._slots = [
            (parameter, partial(_gradient, timeline, noise, slot, scale * ready))
            for ready, slot, parameter in sorted(slots, key=lambda entry: entry[:2], reverse=True)
        ]
        self._head = scale * min(profile.forward)

    def _owner(self, name: str) -> tuple[Layer, str]:
        """The module that owns a tensor, made on the way, and the tensor's name in it."""
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


def _gradient(timeline: Timeline, noise: Noise, slot: int, seconds: float, parameter: Tensor) -> Tensor:
    """Made before its time and handed out at its time."""
    gradient = noise.of(slot, parameter)
    timeline.ready(seconds)
    return gradient


def forward_seconds(profile: StepProfile) -> list[tuple[int, float]]:
    """Slots in the order of forward, each with the seconds until the next one begins, the last until forward ends."""
    # Slots of one layer begin together: what is ready later in backward comes earlier in forward.
    order = sorted(range(len(profile.layout)), key=lambda slot: (profile.forward[slot], -profile.ready[slot], -slot))
    begins = [*(profile.forward[slot] for slot in order), profile.forward_seconds]
    return [(slot, max(0.0, after - at)) for slot, (at, after) in zip(order, pairwise(begins), strict=True)]


def replayed(profile: StepProfile, *, scale: float = 1.0, rank: int = 0, timeline: Timeline | None = None) -> Workload:
    """A workload whose steps take as long as the profile says, `scale` times."""
    if profile.itemsize != 4:
        raise WorkloadError(f"a profile with {profile.itemsize} bytes per element", why="replay sends fp32")
    model = Replayed(profile, scale=scale, rank=rank, timeline=timeline or Timeline())

    def batch(ids: Tensor) -> tuple[Tensor]:
        return (torch.zeros(1),)

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """What a source gave is only held, not looked at."""
        return model(batch[0].flatten()[:1].float()).sum()

    unit = read_layouts().get(profile.model, {}).get("unit", "img")
    return Workload(model, loss, batch, unit)

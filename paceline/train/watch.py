"""Measure with temporary hooks when the forward of each layer starts and when each gradient is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from torch import Tensor, nn

from paceline.engine.engine import Engine
from paceline.engine.gates import for_one
from paceline.types import Event
from paceline.workload.profile import StepProfile, of_slots


class Watch:
    """Measures layer times until `profile` is called. Only the last forward before each backward counts."""

    def __init__(self, model: nn.Module, engine: Engine, parameters: Sequence[Tensor], clock: Callable[[], float]):
        self._engine, self._clock = engine, clock
        owners: dict[int, list[nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                owners.setdefault(id(parameter), []).append(module)
        self._owners = [owners.get(id(parameters[k]), []) for k in engine.order]
        self._forwards: list[tuple[float, dict[int, float], float]] = []
        self._backwards: list[list[float]] = []
        self._steps: list[float] = []
        self._entered: dict[int, float] = {}
        self._span: tuple[float, float] | None = None
        self._hooks = self._hook(model)
        self._own_log = engine.log is None
        if self._own_log:
            engine.log = []
        self._seen = len(engine.log or ())
        self._last = clock()

    def _hook(self, model: nn.Module) -> list[Any]:
        watched = {id(module): module for owners in self._owners for module in owners}
        hooks = [
            model.register_forward_pre_hook(for_one(model, self._begin), prepend=True),
            model.register_forward_hook(for_one(model, self._end)),
        ]
        return hooks + [module.register_forward_pre_hook(for_one(module, self._enter)) for module in watched.values()]

    def _begin(self, module: nn.Module, arguments: Any) -> None:
        self._began, self._entered = self._clock(), {}

    def _enter(self, module: nn.Module, arguments: Any) -> None:
        self._entered.setdefault(id(module), self._clock())

    def _end(self, module: nn.Module, arguments: Any, result: Any) -> None:
        self._span = (self._began, self._clock())

    def stepped(self) -> None:
        """Record the end of a step."""
        events = [Event._make(noted) for noted in (self._engine.log or [])[self._seen :]]
        self._seen += len(events)
        at = {event.what: event.seconds for event in events if event.kind == "ready"}
        now = self._clock()
        began, end = self._span or self._guess(min(at.values(), default=now))
        last = max(at.values(), default=end)
        self._backwards.append([at.get(slot, last) - end for slot in range(len(self._owners))])
        self._forwards.append((began, self._entered, end))
        self._steps.append(now - self._last)
        self._last, self._entered, self._span = now, {}, None

    def _guess(self, ready: float) -> tuple[float, float]:
        """Estimate when forward ran if only parts of a model are called: from the first part to the first gradient."""
        return min(self._entered.values(), default=ready), ready

    def profile(self, *, model: str = "", batch_size: int = 0) -> StepProfile:
        """Remove the hooks and return medians over the measured steps."""
        self.close()
        slots = [slot for arena in self._engine.arenas for slot in arena.layout.slots]
        ready = [max(0.0, median(row[k] for row in self._backwards)) for k in range(len(slots))]
        return StepProfile(
            model=model,
            batch_size=batch_size,
            layout=of_slots(slots),
            itemsize=self._engine.arenas[0].layout.itemsize,
            forward=tuple(median(self._entry(row, owners) for row in self._forwards) for owners in self._owners),
            forward_seconds=median(end - began for began, _, end in self._forwards),
            ready=tuple(ready),
            backward=max(ready),
            step=median(self._steps),
        )

    def _entry(self, row: tuple[float, dict[int, float], float], owners: Sequence[nn.Module]) -> float:
        began, entered, _ = row
        times = [entered[id(module)] for module in owners if id(module) in entered]
        return max(0.0, min(times) - began) if times else 0.0

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._own_log:
            self._engine.log = None

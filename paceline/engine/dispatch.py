"""Which unit may leave now: pure, no I/O, no clock, no torch.

It is told what happened and answers with the units that may leave. The engine feeds it from autograd hooks;
a simulator can feed it from an event heap and gets the same decisions.

    begin(step)    a step began
    ready(slot)    a slot of an arena is filled on this rank
    back(unit)     a unit has been combined among all ranks

Chunks leave in the order of the plan on every rank, whatever the order in which gradients became ready there:
collectives must be called in one order. A chunk with two phases sends the second when the first is back.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.types import Unit


class Dispatcher:
    """`needs[k]` are the slots that chunk k waits for."""

    def __init__(self, needs: Sequence[Sequence[int]], *, phases: int = 1) -> None:
        self._needs = [tuple(slots) for slots in needs]
        self._phases = phases
        self._waiting_for: dict[int, list[int]] = {}
        for chunk, slots in enumerate(self._needs):
            for slot in slots:
                self._waiting_for.setdefault(slot, []).append(chunk)
        self.step = -1

    def begin(self, step: int) -> list[Unit]:
        self.step = step
        self._missing = [len(slots) for slots in self._needs]
        self._seen: set[int] = set()
        self._next = 0
        return self._leaving()

    def ready(self, slot: int) -> list[Unit]:
        if slot in self._seen:
            raise ValueError(f"slot {slot} is ready twice in step {self.step}")
        self._seen.add(slot)
        for chunk in self._waiting_for.get(slot, ()):
            self._missing[chunk] -= 1
        return self._leaving()

    def back(self, unit: Unit) -> list[Unit]:
        if unit.phase + 1 < self._phases:
            return [Unit(unit.step, unit.chunk, unit.phase + 1)]
        return []

    def _leaving(self) -> list[Unit]:
        units = []
        while self._next < len(self._missing) and self._missing[self._next] == 0:
            units.append(Unit(self.step, self._next))
            self._next += 1
        return units

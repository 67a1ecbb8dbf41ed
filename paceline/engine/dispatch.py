"""Dispatchers decide which unit may leave next. They are pure: no I/O, no clock, no torch.

The caller reports events to a dispatcher, and gets back the units that may leave. The engine reports them from
autograd hooks. A simulator can report them from an event heap, and gets the same decisions.

    begin(step)       a step has begun
    ready(slot)       a slot of an arena is filled on this rank
    need(slot)        the forward of the next step has reached the layer of a slot
    announced(chunk)  rank 0 has let a chunk leave
    back(unit)        a unit has been combined among all ranks

All ranks must call collectives in the same order. There are three ways to choose that order:

    Dispatcher     the order of the plan, no matter in which order gradients become ready on this rank
    Leader         rank 0 takes the ready chunk that forward needs first, within a credit of bytes, and announces it;
    Follower       the other ranks send in the announced order, each chunk once it is ready there
    Decoupled      first phases in the order of the plan, then second phases in the order of need
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from paceline.types import Unit


class Dispatcher:
    """Lets chunks leave in the order of the plan. `needs[k]` are the slots that chunk k waits for."""

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
        complete = False
        for chunk in self._waiting_for.get(slot, ()):
            self._missing[chunk] -= 1
            complete = complete or self._missing[chunk] == 0
        return self._leaving() if complete else []

    def need(self, slot: int) -> list[Unit]:
        return []

    def announced(self, chunk: int) -> list[Unit]:
        raise ValueError("nobody leads: chunks leave in the order of the plan")

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


class Leader(Dispatcher):
    """The dispatcher of rank 0. The ready chunk with the smallest `urgency` leaves first.

    At most `credit` bytes are under way. A chunk that is larger than the credit leaves when nothing else is under way.
    """

    def __init__(
        self, needs: Sequence[Sequence[int]], *, urgency: Sequence[int], nbytes: Sequence[int], credit: int
    ) -> None:
        super().__init__(needs)
        self._urgency, self._nbytes, self._credit = tuple(urgency), tuple(nbytes), credit

    def begin(self, step: int) -> list[Unit]:
        self._urgent: set[int] = set()
        self._heap: list[tuple[int, int]] = []
        self._left: set[int] = set()
        self._under_way = 0
        super().begin(step)
        return self._take([chunk for chunk, slots in enumerate(self._needs) if not slots])

    def ready(self, slot: int) -> list[Unit]:
        super().ready(slot)
        return self._take([chunk for chunk in self._waiting_for.get(slot, ()) if self._missing[chunk] == 0])

    def need(self, slot: int) -> list[Unit]:
        """Move the chunks of a waiting layer before all others.

        This matters only if forward runs in an unexpected order.
        """
        due = [chunk for chunk in self._waiting_for.get(slot, ()) if chunk not in self._left]
        self._urgent.update(due)
        return self._take([chunk for chunk in due if self._missing[chunk] == 0])

    def back(self, unit: Unit) -> list[Unit]:
        self._under_way -= self._nbytes[unit.chunk]
        return self._take(())

    def _take(self, chunks: Sequence[int]) -> list[Unit]:
        for chunk in chunks:
            heappush(self._heap, (-1 if chunk in self._urgent else self._urgency[chunk], chunk))
        units = []
        while self._heap and self._fits(self._heap[0][1]):
            _, chunk = heappop(self._heap)
            if chunk not in self._left:
                self._left.add(chunk)
                self._under_way += self._nbytes[chunk]
                units.append(Unit(self.step, chunk))
        return units

    def _fits(self, chunk: int) -> bool:
        gone = chunk in self._left  # it has left with higher urgency; this is its older entry
        return gone or self._under_way == 0 or self._under_way + self._nbytes[chunk] <= self._credit

    def _leaving(self) -> list[Unit]:
        return []


class Follower(Dispatcher):
    """The dispatcher of all ranks but 0. Chunks leave in the order that rank 0 has announced."""

    def begin(self, step: int) -> list[Unit]:
        self._order: list[int] = []
        return super().begin(step)

    @property
    def listening(self) -> bool:
        """Return whether rank 0 has more chunks to announce in this step."""
        return len(self._order) < len(self._needs)

    def announced(self, chunk: int) -> list[Unit]:
        self._order.append(chunk)
        return self._leaving()

    def _leaving(self) -> list[Unit]:
        units = []
        while self._next < len(self._order) and self._missing[self._order[self._next]] == 0:
            units.append(Unit(self.step, self._order[self._next]))
            self._next += 1
        return units


class Decoupled(Dispatcher):
    """Lets phase 0 of all chunks leave in the order of the plan, then phase 1 in the order in which forward needs them.

    Phase 1 of a chunk also waits until its phase 0 is back. No phase 1 leaves before the last phase 0 has left. So all
    ranks call in the same order, no matter what comes back first.
    """

    def __init__(self, needs: Sequence[Sequence[int]], *, urgency: Sequence[int]) -> None:
        super().__init__(needs, phases=2)
        self._second = sorted(range(len(self._needs)), key=lambda chunk: (urgency[chunk], chunk))

    def begin(self, step: int) -> list[Unit]:
        self._reduced: set[int] = set()
        self._gathering = 0
        return super().begin(step)

    def back(self, unit: Unit) -> list[Unit]:
        if unit.phase == 0:
            self._reduced.add(unit.chunk)
        units = []
        while self._may_gather():
            units.append(Unit(self.step, self._second[self._gathering], 1))
            self._gathering += 1
        return units

    def _may_gather(self) -> bool:
        if self._gathering == len(self._second) or self._next < len(self._needs):
            return False
        return self._second[self._gathering] in self._reduced

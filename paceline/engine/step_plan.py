"""The plan of a step: its chunks and their order. Pure, without torch; engine and forecasts use it.

    arenas    | a0 | a1 | a2 | flags |    | b0 | b1 | flags |        one per dtype; slot numbers continue: b0 is 3
    chunks    [ a0 a1 ]  [ b0 ]  [ a2 flags ]  [ b1 flags ]          ordered by the last slot that they wait for

Flags are known when all slots of their arena are ready, so the chunk with the flags waits for all these slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.coded import coded_link
from paceline.protocols import Compressor, Schedule
from paceline.types import Chunk, Lane, Layout, Link, Plan, Profile

UNKNOWN = Link(0.0, 1e9)  # used before a link is measured, by schedules that ignore the link


@dataclass(frozen=True)
class StepPlan:
    """Chunks in the order of the plan. `needs[k]` are the slots that chunk k waits for, numbered over all arenas."""

    layouts: tuple[Layout, ...]
    chunks: list[Chunk]
    needs: list[tuple[int, ...]]

    @property
    def nbytes(self) -> list[int]:
        """Return the bytes of every chunk before compression. A credit counts these bytes."""
        return [chunk.numel * self.layouts[chunk.arena].itemsize for chunk in self.chunks]

    def covers(self) -> list[list[int]]:
        """Return, for each slot, the chunks that contain a part of the slot or the flag of the slot."""
        chunks_of: list[list[int]] = [[] for layout in self.layouts for _ in layout.slots]
        for chunk, slots in enumerate(self.needs):
            for slot in slots:
                chunks_of[slot].append(chunk)
        return chunks_of

    def urgency(self, starts: Sequence[float]) -> list[int]:
        """Return the position of each chunk in the order of need in forward. Chunks with flags come first.

        `starts[slot]` is the time at which the next forward reaches a slot.
        """
        needed = [min((starts[slot] for slot in slots), default=0.0) for slots in self.needs]
        flags = [len(slots) != len(self._inside(chunk)) for slots, chunk in zip(self.needs, self.chunks, strict=True)]
        ranked = sorted(range(len(needed)), key=lambda chunk: (not flags[chunk], needed[chunk], -chunk))
        places = dict(zip(ranked, range(len(ranked)), strict=True))
        return [places[chunk] for chunk in range(len(ranked))]

    def _inside(self, chunk: Chunk) -> tuple[int, ...]:
        return self.layouts[chunk.arena].slots_in(chunk.start, chunk.stop)


def tail_of(lane: Lane, slots: int) -> int:
    """Return the number of elements after the slots of an arena: a flag per slot, one mass, or none."""
    return {"flags": slots, "mass": 1}.get(lane.tail, 0)


def plan_step(
    schedule: Schedule, profiles: Sequence[Profile], link: Link | None, compressor: Compressor, size: int
) -> StepPlan:
    """Return the plan of a schedule for arenas with these profiles, among `size` ranks.

    Without a link, layer times are not used either.
    """
    plans = [_cut(schedule, profile, link, compressor, size) for profile in profiles]
    return interleave([profile.layout for profile in profiles], plans)


def plan_whole(layouts: Sequence[Layout]) -> StepPlan:
    """Return a plan with one chunk per arena. A schedule that measures uses it until its own plan is made."""
    return interleave(layouts, [Plan((0, layout.numel)) for layout in layouts])


def _cut(schedule: Schedule, profile: Profile, link: Link | None, compressor: Compressor, size: int) -> Plan:
    if link is None or not profile.ready:
        return schedule.plan(Profile(profile.layout), UNKNOWN.seconds)
    return schedule.plan(profile, coded_link(link, compressor, profile.layout, size).seconds)


def interleave(layouts: Sequence[Layout], plans: Sequence[Plan]) -> StepPlan:
    """Return the chunks of all arenas, ordered by the last slot that each waits for."""
    placed: list[tuple[int, Chunk, tuple[int, ...]]] = []
    first = 0
    for index, (layout, plan) in enumerate(zip(layouts, plans, strict=True)):
        count = len(layout.slots)
        for chunk in plan.chunks(index):
            flags = chunk.stop == layout.numel and layout.tail
            slots = range(count) if flags else layout.slots_in(chunk.start, chunk.stop)
            placed.append((max(slots, default=0), chunk, tuple(first + slot for slot in slots)))
        first += count
    placed.sort(key=lambda entry: (entry[0], entry[1].arena, entry[1].start))
    chunks = [Chunk(k, chunk.start, chunk.stop, chunk.arena) for k, (_, chunk, _) in enumerate(placed)]
    return StepPlan(tuple(layouts), chunks, [needs for _, _, needs in placed])

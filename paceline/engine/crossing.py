"""An engine for schedules that cross the step: its exchange may continue during the forward of the next step.

    backward of t            | step() |  forward of t+1
    offer offer offer offer   close      need(first layer) need(second) ...        finish
       \\     \\ leave        \\ leave       back                 back

Within a step, rank 0 leads. It picks the ready chunk that forward needs first, within a limit of bytes under way (the
credit), and announces its choice on a Board. The other ranks send in that order. All units of a step are back before
the first gradient of the next step enters the arena. Steps before the plan is made do not cross.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paceline.comm.transport import Board
from paceline.engine.dispatch import Follower
from paceline.engine.engine import Engine
from paceline.engine.way import Way, way_of
from paceline.types import Unit


class CrossingEngine(Engine):
    """An engine that crosses the step. `crossing` is True once the plan is made.

    `settled` is True if nothing is under way.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.crossing, self.settled = False, True
        self._board: Board | None = None
        super().__init__(*arguments, **settings)

    def _plan(self) -> None:
        super()._plan()
        self.crossing = self.profile is not None
        self._phases = self._exchange.phases
        if not self.crossing:
            return
        self._covers = self.step_plan.covers()
        self.urgency = self.step_plan.urgency([time for known in self._profiles() for time in known.forward])
        self._free_board()
        way = way_of(self.schedule)
        self._board = self.comm.board(2 * len(self.chunks) + 8) if way.led else None
        self._dispatcher = way.dispatcher(self.step_plan, self.urgency, leads=self.comm.rank == 0)

    def _free_board(self) -> None:
        """Give back the Board of the old plan, if there is one."""
        board, self._board = self._board, None
        if board is not None:
            board.free()

    def abandon(self) -> None:
        super().abandon()
        self.settled = True

    def release(self) -> None:
        super().release()
        self._free_board()

    # one step -----------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        self._back: set[int] = set()
        self._absent: list[int] | None = None
        self.settled = False
        if self.crossing and self._board is not None and self.comm.rank:
            self._board.expect(len(self.chunks))
        super().begin(step)

    def offer(self, slot: int, since: float = 0.0) -> None:
        self.arrived[slot] = None
        self._ready(slot, since)
        self.advance()

    def close(self) -> None:
        """End backward: slots without a gradient get zeros and flag 0, and are offered. Does not wait."""
        if self._absent is not None:
            return
        self._absent = self.missing()
        self._flag(self._absent, 0)
        for slot in self._absent:
            self._sources[slot].zero_()
            self._ready(slot)
        self.advance()

    def advance(self) -> None:
        """Do everything that can be done without waiting: start rounds, take results, follow the choices of rank 0."""
        super().advance()
        if not self.crossing:
            return
        while self._flying and self._flying[0][1].round_done():
            self._retire()
        while self._listens():
            assert self._board is not None
            chunk = self._board.heard()
            if chunk is None:
                return
            self._follow(chunk)

    def need(self, slots: Iterable[int]) -> None:
        """Wait until all chunks that contain these slots, or their flags, are back."""
        self.advance()  # even if this layer does not wait, because nothing else advances exchanges during forward
        due = {chunk for slot in slots for chunk in self._covers[slot]} - self._back
        if not due:
            return
        for slot in slots:
            self._note("need", self._dispatcher.step, slot)
            self._send(self._dispatcher.need(slot))
        while not due <= self._back:
            if self._flying:
                self._retire()
                self.advance()
            else:
                assert self._board is not None
                self._follow(self._board.hear(f"step {self._dispatcher.step}"))
        self.device.rejoin()

    def finish(self) -> None:
        if self.settled:
            return
        if self.crossing:
            self.close()
            self.need(range(len(self._sources)))
            self._drain()
            self._flag(self._absent or (), 1)
        else:
            super().finish()
        self.settled = True

    def _drain(self) -> None:
        """Wait for chunks that no slot needs, if the schedule made any."""
        while len(self._back) < len(self.chunks):
            self._retire() if self._flying else self._follow(self._board.hear())  # type: ignore[union-attr]

    def _retire(self) -> None:
        self._agree()
        unit, work = self._flying.popleft()
        chunk = self.chunks[unit.chunk]
        work.wait(self._patience(chunk.stop == self.arenas[chunk.arena].layout.numel))
        self._note("back", unit.step, unit.chunk, unit.phase)
        if unit.phase + 1 == self._phases:
            self._back.add(unit.chunk)
        self._send(self._dispatcher.back(unit))

    def _listens(self) -> bool:
        return isinstance(self._dispatcher, Follower) and self._dispatcher.listening

    def _follow(self, chunk: int) -> None:
        self._note("said", self._dispatcher.step, chunk)
        self._send(self._dispatcher.announced(chunk))

    def _send(self, units: Sequence[Unit]) -> None:
        if self._board is not None and self.comm.rank == 0 and self.crossing:
            for unit in units:
                self._board.say(unit.chunk)
        super()._send(units)


def engine_of(way: Way) -> type[Engine]:
    """Return the engine class that a Way needs."""
    return CrossingEngine if way.crosses else Engine

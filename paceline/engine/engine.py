"""The engine connects arenas, dispatcher and channel: slots are offered, units leave, `finish` waits for results.

offer(slot) -> dispatcher -> channel.start(unit) -> ... -> finish(): wait for all, in order
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm import link as network
from paceline.comm.notes import STEP
from paceline.comm.sums import wide
from paceline.comm.transport import Comm, Work
from paceline.engine.arena import Arena, Lease
from paceline.engine.device import Device
from paceline.engine.dispatch import Dispatcher
from paceline.engine.step_plan import UNKNOWN, plan_step, plan_whole, tail_of
from paceline.engine.way import phased
from paceline.errors import WrongCommand
from paceline.protocols import Channel, Compressor, Exchange, Schedule
from paceline.types import Chunk, Lane, Link, Noted, Profile, Unit, View
from paceline.workload.profile import StepProfile

Clock = Callable[[], float]


class Engine:
    """Exchanges one vector of a rule, usually the gradients of a model, step after step.

    Slots are numbered over all arenas, starting with arena 0. A model with one dtype has one arena. `widens` is whether
    half-precision tensors travel as float32. `crossing` is whether the exchange may continue during the next forward.
    """

    crossing = False

    def __init__(
        self,
        names: Sequence[str],
        likes: Sequence[Tensor],
        *,
        exchange: Exchange,
        schedule: Schedule,
        compressor: Compressor,
        device: Device,
        clock: Clock,
        lane: Lane,
        widens: bool = False,
    ) -> None:
        self.device, self.schedule, self._clock = device, schedule, clock
        self._whole, self._exchange = exchange, phased(exchange, schedule)
        self._compressor, self._lane = compressor, lane
        self._remembers = compressor.remembers
        self._memory: Any = None  # None until `enter`
        self._saved: dict[str, Any] | None = None  # state of a checkpoint that was loaded before `enter`
        self._widens = widens
        self.order: list[int] = []  # position of slot k among `likes`
        self.arenas: list[Arena] = []
        for dtype in dict.fromkeys(self.carried(like) for like in likes):
            chosen = [k for k, like in enumerate(likes) if self.carried(like) == dtype]
            self.order += chosen
            self.arenas.append(
                Arena(
                    [names[k] for k in chosen],
                    [likes[k] for k in chosen],
                    compressor,
                    tail=tail_of(lane, len(chosen)),
                    dtype=dtype,
                )
            )
        self._number()
        self._flying: deque[tuple[Unit, Work]] = deque()
        self.arrived: dict[int, None] = {}  # a set that keeps the order
        self._agreement: Work | None = None
        self.keeps_step = exchange.consensus  # without consensus, a rank need not wait for all others
        self.log: list[Noted] | None = None
        self.profile: StepProfile | None = None  # not known before it is measured or given
        self.link = UNKNOWN
        self.tuning: dict[str, Any] = {}  # what schedule auto tried and chose

    def enter(self, comm: Comm, view: View) -> None:
        """Join a group: make the channel, the memory and the plan for its ranks. Collective, between steps.

        The first call follows the constructor. A later call does not notify ranks of the old group, which may be gone.
        Codecs keep their state.
        """
        self.comm, self._view = comm, view
        self._vector, comm.engines = comm.engines, comm.engines + 1
        self._join()
        saved, self._saved = self._saved, None
        if saved is not None:
            self.restore(saved)

    def _join(self) -> None:
        """Make the channel, the memory and the plan for this group, and release those that were there. Collective."""
        if self._memory is not None:
            self._memory.give_back()
        self._memory = Lease(self.comm)
        self._channel: Channel = self._exchange.join(self._memory, self._view, self._lane)
        self._progress: Callable[[], None] = self._channel.memory.progress
        for arena in self.arenas:
            arena.enter(self._channel.memory, shared=self._exchange.shares_results)
        self._plan()

    def abandon(self) -> None:
        """Forget all exchanges that are under way, because ranks that take part in them are gone."""
        self._flying.clear()
        self.arrived.clear()
        self._agreement = None

    def carried(self, tensor: Tensor) -> torch.dtype:
        """Return the dtype in which a tensor travels: float32 if half precision is widened, else its own."""
        return wide(tensor.dtype) if self._widens else tensor.dtype

    def _plan(self) -> None:
        """Cut every arena into chunks. While a schedule still measures, an arena is one chunk."""
        self._allocated = False
        if self.profile is None and self.schedule.measures:
            self.step_plan = plan_whole([arena.layout for arena in self.arenas])
        else:
            profiles, size = self._profiles(), self.comm.size
            self.step_plan = plan_step(self.schedule, profiles, self.link, self._compressor, size)
        self.chunks, self.needs = self.step_plan.chunks, self.step_plan.needs
        self._dispatcher: Dispatcher = Dispatcher(self.needs, phases=self._exchange.phases)
        self._number()

    def _number(self) -> None:
        """Number the slots over all arenas."""
        self._slots = [(arena, i) for arena in self.arenas for i in range(len(arena.layout.slots))]
        self._sources = [view for arena in self.arenas for view in arena.source_views]

    def _profiles(self) -> list[Profile]:
        """Return the profile of every arena, as far as it is known."""
        layouts = [arena.layout for arena in self.arenas]
        known = self.profile
        return [Profile(layout) if known is None else known.for_layout(layout) for layout in layouts]

    @property
    def channel(self) -> Channel:
        """Return the channel, for rules that call more of it than the engine does."""
        return self._channel

    # one step -----------------------------------------------------------------------------------

    def begin(self, step: int) -> None:
        self._flying = deque()
        self.arrived = {}
        self._landed = 0  # how many units at the front of _flying are in the log as arrived
        self._note("begin", step)
        self._announced, self._agreement = not self.keeps_step, None
        self._send(self._dispatcher.begin(step))

    def name_of(self, slot: int) -> str:
        arena, index = self._slots[slot]
        return arena.layout.slots[index].name

    def source(self, slot: int) -> Tensor:
        return self._sources[slot]

    def glance(self) -> float:
        """Return the time if events are logged, else 0."""
        return 0.0 if self.log is None else self._clock()

    def offer(self, slot: int, since: float = 0.0) -> None:
        """Register that the source of a slot is filled, and send what may leave. `since` is glance() before filling."""
        self.arrived[slot] = None
        self._ready(slot, since)
        self.advance()
        if self.log is not None:
            self._look()

    def advance(self) -> None:
        """Start later rounds of the chunks that are under way, without waiting. No chunk overtakes the one before it.

        In the first step of a plan no rounds are started here: channels allocate memory then, and all ranks must
        allocate in the same order.
        """
        self._progress()
        if self._allocated:
            ahead = math.inf
            for _, work in self._flying:
                ahead = work.advance(ahead)
                if ahead <= 1:
                    break

    def _look(self) -> None:
        """Write to the log which units have come back while backward still runs."""
        while self._landed < len(self._flying):
            unit, work = self._flying[self._landed]
            if not work.landed():
                return
            self._landed += 1
            self._note("arrived", unit.step, unit.chunk, unit.phase)

    def _ready(self, slot: int, since: float = 0.0) -> None:
        if self.log is not None:
            now = self._clock()
            self.log.append((now, "ready", self._dispatcher.step, slot, now - since if since else 0.0))
        if not self._announced:
            self._announced, self._agreement = True, self.comm.agree(STEP, key=self._note_of_step())
        units = self._dispatcher.ready(slot)
        if units:
            self._send(units)

    def place(self, slot: int) -> tuple[Arena, int]:
        """Return the arena of a slot, and its number in that arena."""
        return self._slots[slot]

    def holds(self, slot: int, count: float) -> bool:
        """Return whether the result of a slot has content. `count` is the number of ranks that had a gradient.

        With a compressor that keeps residuals, ranks without a gradient may still have sent an older residual.
        """
        if count > 0 or not self._remembers:
            return count > 0
        arena, index = self._slots[slot]
        return bool(arena.result_views[index].any())

    def missing(self) -> list[int]:
        """Return the slots that were not offered in this step."""
        return [slot for slot in range(len(self._sources)) if slot not in self.arrived]

    def finish(self) -> None:
        """Give slots without a gradient zeros and flag 0, then wait until every unit is back."""
        absent = self.missing()
        self._flag(absent, 0)
        for slot in absent:
            self._sources[slot].zero_()
            self._ready(slot)
        self._wait()
        self._allocated = True
        self._flag(absent, 1)
        self.device.rejoin()

    def _flag(self, slots: Sequence[int], value: int) -> None:
        for slot in slots:
            arena, index = self._slots[slot]
            arena.tail[index] = value

    def _note_of_step(self) -> str:
        numel = sum(arena.layout.numel for arena in self.arenas)
        return f"{self._dispatcher.step} of vector {self._vector}, {numel} elements in {len(self.chunks)} chunks"

    def _agree(self) -> None:
        """Wait for the check that all ranks are in the same step. Called before any result of the step is used."""
        if self._agreement is not None:
            self._agreement.wait()
            self._agreement = None

    def _wait(self) -> None:
        self._agree()
        while self._flying:
            unit, work = self._flying.popleft()
            work.wait(self._patience(not self._flying))
            if self._landed:
                self._landed -= 1  # the log already has its arrival
            else:
                self._note("back", unit.step, unit.chunk, unit.phase)
            self._send(self._dispatcher.back(unit))

    def _patience(self, read_next: bool) -> float | None:
        """Return the deadline for a wait. Only the last unit gets one, if there are flags.

        With a deadline the host blocks until the GPU is done, so that the time before reading flags counts as waiting.
        """
        return self.comm.deadline if read_next and any(arena.layout.tail for arena in self.arenas) else None

    def _send(self, units: Sequence[Unit]) -> None:
        for unit in units:
            chunk = self.chunks[unit.chunk]
            arena = self.arenas[chunk.arena]
            part = slice(chunk.start, chunk.stop)
            self._note("leave", unit.step, unit.chunk, unit.phase)
            with self.device.sending(self.device.mark()):
                work = self._channel.start(
                    unit._replace(vector=self._vector), chunk, arena.source[part], arena.result[part], arena.codec
                )
            self._flying.append((unit, work))

    def _note(self, kind: str, step: int, what: int = -1, phase: int = 0) -> None:
        if self.log is not None:
            self.log.append((self._clock(), kind, step, what, phase))

    # between steps ------------------------------------------------------------------------------

    def adopt_order(self) -> None:
        """Put the slots into the order in which gradients of rank 0 became ready in this step. Collective."""
        ranks = torch.tensor([*self.arrived, *self.missing()], dtype=torch.int64)
        self.comm.broadcast(ranks, 0, "the order of gradients").wait()
        self._lay_out(ranks.tolist())

    @property
    def names(self) -> list[str]:
        """Return the names of all slots in their order, for a checkpoint."""
        return [self.name_of(slot) for slot in range(len(self._slots))]

    def adopt_names(self, names: Sequence[str]) -> bool:
        """Put the slots into the order of a checkpoint. Return False if this model has other names."""
        if list(names) == self.names:
            return True
        at = {name: slot for slot, name in enumerate(self.names)}
        if sorted(names) != sorted(at):
            return False
        self._lay_out([at[name] for name in names])
        return True

    def _lay_out(self, slots: Sequence[int]) -> None:
        """Put the slots into a new order. Each slot stays in its arena."""
        moved: list[int] = []
        first = 0
        for arena in self.arenas:
            count = len(arena.layout.slots)
            local = [slot - first for slot in slots if first <= slot < first + count]
            arena.reorder(local)
            moved += [first + slot for slot in local]
            first += count
        self.order = [self.order[slot] for slot in moved]
        if self._memory is None:
            self._number()
        else:
            self._plan()

    def adopt_plan(self, profile: StepProfile, link: Link, schedule: Schedule | None = None) -> None:
        """Make a new plan with these times and this link. They must be the same on all ranks.

        A schedule may need the exchange in other phases. Its channel and its memory are then made anew, which is
        collective, and the memory of chunks of the old plan is released.
        """
        self.profile, self.link = profile, link
        before, self.schedule = self.schedule, schedule or self.schedule
        if self.schedule is before or not (before.decouples or self.schedule.decouples):
            self._plan()
            return
        self._exchange = phased(self._whole, self.schedule)
        self._join()

    def measure_link(self) -> Link:
        """Time chunks of several sizes through this channel. Return the link that rank 0 measured. Collective."""
        arena = max(self.arenas, key=lambda arena: arena.layout.nbytes)

        def exchange(nbytes: int) -> float:
            numel = max(1, nbytes // arena.layout.itemsize)
            chunk = Chunk(-numel, 0, numel)  # a separate number, because channels keep memory by chunk
            self.comm.barrier()
            began = self._clock()
            for phase in range(self._exchange.phases):
                unit = Unit(self._dispatcher.step, chunk.index, phase)
                work = self._channel.start(unit, chunk, arena.source[:numel], arena.result[:numel], None)
                work.wait(self.comm.deadline)  # with a deadline the host also waits for a GPU
            return self._clock() - began

        link = network.measure(exchange, network.sizes_within(arena.layout.nbytes))
        agreed = torch.tensor([link.latency, link.bandwidth], dtype=torch.float64)
        self.comm.broadcast(agreed, 0, "the link").wait()
        return Link(*agreed.tolist())

    def release(self) -> None:
        """Release the memory that other ranks can see. The engine cannot be used afterwards."""
        for arena in self.arenas:
            arena.close()
        if self._memory is not None:
            self._memory.give_back()
        self._sources = []

    def state(self) -> dict[str, Any]:
        """Return the state of channel and codecs. Every rank must save its own, because residuals differ."""
        codecs = [{} if arena.codec is None else dict(arena.codec.state()) for arena in self.arenas]
        return {"channel": dict(self._channel.state()), "codecs": codecs, "owes": self._remembers}

    def restore(self, state: dict[str, Any]) -> None:
        if self._memory is None:
            self._saved = state
            return
        self._channel.restore(state["channel"])
        for arena, saved in zip(self.arenas, state["codecs"], strict=True):
            if arena.codec is not None:
                arena.codec.restore(saved)
            elif saved and state.get("owes", True):
                raise WrongCommand(
                    f"the saved state of compressor {saved.get('compressor', '(unnamed)')}",
                    why="this run has none, and what that one still owed would be lost",
                    remedy="the compressor of the checkpoint, or load model and optimizer alone",
                )

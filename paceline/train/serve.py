"""What a server process does: hear an order, take part in it, until the workers are done.

Under rule `grad` it only adds. Under rule `server` it keeps parameters and runs the optimizer on them: for all
workers together, or for each as its pushes arrive (crews).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm.service import DTYPES, Attendant, Order
from paceline.comm.sums import sum_into
from paceline.errors import PeerLost
from paceline.exchanges.placement import Placer, shares
from paceline.rules.server import ELEMENTWISE
from paceline.types import Piece

NAP, LONGEST_NAP = 0.0001, 0.002  # seconds between looks at workers that have nothing to say


def serve(attendant: Attendant) -> None:
    """Until the workers say that they are done."""
    desk = Desk(attendant, Shelf)
    while True:
        order = attendant.hear()
        if order.word == "end":
            return
        if order.word == "crews":
            serve_crews(attendant)
        else:
            desk.obey(order)


class Desk:
    """One attendant with its lanes: carries out orders."""

    def __init__(self, attendant: Attendant, new_shelf: Callable[[], Shelf]) -> None:
        self.attendant, self._new_shelf = attendant, new_shelf
        self._shelves: dict[int, Shelf] = {}
        self._placers: dict[int, Placer] = {}

    def obey(self, order: Order) -> None:
        word, numbers = order
        if word == "lane":
            servers = self.attendant.comm.size - self.attendant.givers
            self._placers[numbers[0]] = Placer(shares(self.attendant.givers, servers, bool(numbers[1])))
            self._shelves[numbers[0]] = self._new_shelf()
        elif word == "ready":
            return
        elif word == "text":
            settings = self.attendant.text(order)
            self._shelves[settings["lane"]].describe(settings)
        elif word == "sum":
            self.attendant.take_part(order, self._pieces(order))
        elif word in ("begin", "update"):
            shelf = self._shelves[numbers[0]]
            act = shelf.begin if word == "begin" else shelf.update
            self.attendant.take_part(order, self._pieces(order), _at(act, order))
        else:
            self.attendant.allocate(order)

    def _pieces(self, order: Order) -> Sequence[Piece]:
        lane, chunk, numel, dtype = order.numbers[:4]
        return self._placers[lane].pieces(chunk, numel, DTYPES[dtype].itemsize)


def _at(act: Callable[[tuple[int, int], Tensor, Sequence[Tensor]], None], order: Order) -> Any:
    """Ranges of a message are ranges of an arena: the message says where it starts there."""
    arena, first = order.numbers[4:6]
    return lambda out, parts, start: act((arena, first + start), out, parts)


class Shelf:
    """The parameters that this server keeps, piece by piece, and their optimizer."""

    def __init__(self) -> None:
        self.round = 0  # how often workers have begun anew, with parameters of a checkpoint
        self._settings: dict[str, Any] = {}
        self._pieces: dict[tuple[int, int], Tensor] = {}
        self._parts: dict[tuple[int, int], list[tuple[Tensor, int, int]]] = {}
        self._optimizer: torch.optim.Optimizer | None = None
        self._groups: dict[int, int] = {}  # parameter group of the worker -> of this server's optimizer

    @property
    def bound(self) -> int | None:
        return self._settings.get("bound")

    @property
    def chunks(self) -> int:
        return int(self._settings["chunks"])

    def describe(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        if settings["round"] > self.round:
            self._clear(settings["round"])
        if self._optimizer is not None:
            for group, mine in self._groups.items():
                self._optimizer.param_groups[mine].update(_tuples(settings["groups"][group]))

    def _clear(self, round: int) -> None:
        """Room for the parameters of a new round; the state of the optimizer goes with the old ones."""
        self.round, self._optimizer = round, None
        self._pieces.clear()
        self._parts.clear()

    def begin(self, place: tuple[int, int], out: Tensor, parts: Sequence[Tensor]) -> None:
        """A worker brings parameters; of several that bring the same in a round, the first is taken."""
        if place not in self._pieces:
            self._pieces[place] = parts[0].clone()
            self._optimizer = None
        out.copy_(self._pieces[place])

    def update(self, place: tuple[int, int], out: Tensor, parts: Sequence[Tensor]) -> None:
        """Step on the sum of what came, then hand out the parameters."""
        if self._optimizer is None:
            self._optimizer = self._build()
        sum_into(out, parts)
        for parameter, start, stop in self._parts[place]:
            parameter.grad = out[start:stop]
        self._optimizer.step()
        for parameter, _, _ in self._parts[place]:
            parameter.grad = None
        out.copy_(self._pieces[place])

    def _build(self) -> torch.optim.Optimizer:
        name = self._settings["optimizer"]
        if name not in ELEMENTWISE:
            raise ValueError(f"optimizer {name!r} is not one that servers run")
        members: dict[int, list[Tensor]] = {}
        for (arena, first), piece in self._pieces.items():
            self._parts[arena, first] = []
            for start, stop, group in self._settings["segments"][self._settings["sources"].index(arena)]:
                low, high = max(start - first, 0), min(stop - first, piece.numel())
                if low < high and group >= 0:
                    self._parts[arena, first].append((piece[low:high], low, high))
                    members.setdefault(group, []).append(self._parts[arena, first][-1][0])
        self._groups = {group: mine for mine, group in enumerate(members)}
        groups = [{**_tuples(self._settings["groups"][group]), "params": held} for group, held in members.items()]
        made: torch.optim.Optimizer = getattr(torch.optim, name)(groups)
        return made


def _tuples(settings: dict[str, Any]) -> dict[str, Any]:
    """JSON has no tuples; optimizers do."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}


# every worker for itself ------------------------------------------------------------------------------


def serve_crews(attendant: Attendant) -> None:
    """One desk per worker, one shelf for all; look at each in turn until all have left."""
    assert attendant.crews is not None, "a server can make crews"
    shelf = Shelf()
    desks = {worker: _welcome(Desk(Attendant(crew, 1), lambda: shelf)) for worker, crew in enumerate(attendant.crews())}
    try:
        _attend(desks, shelf)
    finally:
        for desk in desks.values():
            desk.attendant.close("failed")


def _attend(desks: dict[int, Desk], shelf: Shelf) -> None:
    clocks = Clocks(desks)
    waiting: dict[int, Order] = {}
    pause = NAP
    while desks:
        moved = False
        for worker, desk in list(desks.items()):
            order = waiting.pop(worker, None) or desk.attendant.overhear()
            if order is None:
                continue
            if order.word == "update" and not clocks.allow(worker, shelf.bound):
                waiting[worker] = order
                continue
            moved = True
            if order.word == "end":
                clocks.leave(worker)
                desks.pop(worker).attendant.close()
                continue
            desk.obey(order)
            if order.word == "update":
                clocks.count(worker, shelf.chunks)
            elif clocks.round < shelf.round:
                clocks = Clocks(desks, shelf.round)
        pause = NAP if moved else min(LONGEST_NAP, 1.5 * pause)
        if not moved:
            if pause >= LONGEST_NAP:
                waiting.update(_last_words(desks, waiting))
            time.sleep(pause)


def _welcome(desk: Desk) -> Desk:
    """Memory is taken together with the other servers, so all of them go through the workers in one order."""
    desk.attendant.comm.get_ready()
    while True:
        order = desk.attendant.hear()
        desk.obey(order)
        if order.word == "ready":
            return desk


def _last_words(desks: dict[int, Desk], waiting: dict[int, Order]) -> dict[int, Order]:
    """While nothing happens: has somebody gone? What they said before they went still counts."""
    found = {}
    for worker, desk in desks.items():
        excuse = desk.attendant.lost() if worker not in waiting else None
        order = desk.attendant.overhear() if excuse else None
        if excuse and order is None:
            raise PeerLost(f"rank {worker} {excuse} while servers waited for it", rank=worker)
        if order is not None:
            found[worker] = order
    return found


class Clocks:
    """How many steps each worker has finished in a round, as one server sees it.

    Servers count for themselves: the steps of a worker that goes on from a checkpoint begin anywhere.
    """

    def __init__(self, workers: Iterable[int], round: int = 0) -> None:
        self.round = round
        self._done: dict[int, int] = dict.fromkeys(workers, 0)
        self._chunks: dict[int, int] = dict.fromkeys(self._done, 0)  # of the step that a worker is in

    def allow(self, worker: int, bound: int | None) -> bool:
        """Whether a worker may finish its step: it would be at most `bound` ahead of the slowest."""
        return bound is None or self._done[worker] + 1 - min(self._done.values()) <= bound

    def count(self, worker: int, chunks: int) -> None:
        """One more chunk of a worker's step is done; the last one ends the step."""
        self._chunks[worker] += 1
        if self._chunks[worker] == chunks:
            self._chunks[worker] = 0
            self._done[worker] += 1

    def leave(self, worker: int) -> None:
        """Nobody waits for a worker that has gone."""
        del self._done[worker]

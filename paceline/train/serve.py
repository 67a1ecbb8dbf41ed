"""The main loop of a server process. It receives orders and carries them out until the workers are done.

Under rule `grad`, a server only adds. Under rule `server`, it keeps parameters and runs the optimizer on them, either
for all workers together, or for each worker as its gradients arrive (crews).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm.service import DTYPES, Attendant, ServerOrder
from paceline.comm.sums import sum_into
from paceline.errors import PeerLost
from paceline.strategy.exchanges._placement import Placer, shares
from paceline.strategy.rules.server import ELEMENTWISE
from paceline.types import Piece

NAP, LONGEST_NAP = 0.0001, 0.002  # seconds between two polls of workers that send no orders


def serve(attendant: Attendant) -> None:
    """Serve until the workers send the order `end`."""
    executor = OrderExecutor(attendant, ServedParameters)
    while True:
        order = attendant.hear()
        if order.word == "end":
            return
        if order.word == "crews":
            serve_crews(attendant)
        else:
            executor.obey(order)


class OrderExecutor:
    """Carries out the orders that one attendant receives, and keeps the state of its lanes."""

    def __init__(self, attendant: Attendant, new_served: Callable[[], ServedParameters]) -> None:
        self.attendant, self._new_served = attendant, new_served
        self._served: dict[int, ServedParameters] = {}
        self._placers: dict[int, Placer] = {}

    def obey(self, order: ServerOrder) -> None:
        word, numbers = order
        if word == "lane":
            servers = self.attendant.comm.size - self.attendant.givers
            self._placers[numbers[0]] = Placer(shares(self.attendant.givers, servers, bool(numbers[1])))
            self._served[numbers[0]] = self._new_served()
        elif word == "ready":
            return
        elif word == "text":
            settings = self.attendant.text(order)
            self._served[settings["lane"]].describe(settings)
        elif word == "sum":
            self.attendant.take_part(order, self._pieces(order))
        elif word in ("begin", "update"):
            served = self._served[numbers[0]]
            act = served.begin if word == "begin" else served.update
            self.attendant.take_part(order, self._pieces(order), _at(act, order))
        else:
            self.attendant.allocate(order)

    def _pieces(self, order: ServerOrder) -> Sequence[Piece]:
        lane, chunk, numel, dtype = order.numbers[:4]
        return self._placers[lane].pieces(chunk, numel, DTYPES[dtype].itemsize)


def _at(act: Callable[[tuple[int, int], Tensor, Sequence[Tensor]], None], order: ServerOrder) -> Any:
    """Return a `combine` that calls `act` with a position in the arena instead of an offset in the message."""
    arena, first = order.numbers[4:6]
    return lambda out, parts, start: act((arena, first + start), out, parts)


class ServedParameters:
    """The pieces of the parameters that this server owns, and their optimizer."""

    def __init__(self) -> None:
        self.round = 0  # how often workers have started again with the parameters of a checkpoint
        self._settings: dict[str, Any] = {}
        self._pieces: dict[tuple[int, int], Tensor] = {}
        self._parts: dict[tuple[int, int], list[tuple[Tensor, int, int]]] = {}
        self._optimizer: torch.optim.Optimizer | None = None
        self._groups: dict[int, int] = {}  # index of a worker's parameter group -> index in this server's optimizer

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
        """Drop the parameters and the optimizer state of the last round."""
        self.round, self._optimizer = round, None
        self._pieces.clear()
        self._parts.clear()

    def begin(self, place: tuple[int, int], out: Tensor, parts: Sequence[Tensor]) -> None:
        """Take a worker's initial parameters. If several workers send the same piece in a round, the first counts."""
        if place not in self._pieces:
            self._pieces[place] = parts[0].clone()
            self._optimizer = None
        out.copy_(self._pieces[place])

    def update(self, place: tuple[int, int], out: Tensor, parts: Sequence[Tensor]) -> None:
        """Step the optimizer on the sum of the gradients, then send the parameters back."""
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
    """Convert lists to tuples, because optimizers expect tuples and JSON has none."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}


# every worker for itself ------------------------------------------------------------------------------


def serve_crews(attendant: Attendant) -> None:
    """Serve workers that do not wait for each other. Poll the orders of each worker in turn until all have left."""
    assert attendant.crews is not None, "a server can make crews"
    served = ServedParameters()
    executors = {
        worker: _welcome(OrderExecutor(Attendant(crew, 1), lambda: served))
        for worker, crew in enumerate(attendant.crews())
    }
    try:
        _attend(executors, served)
    finally:
        for executor in executors.values():
            executor.attendant.close("failed")


def _attend(executors: dict[int, OrderExecutor], served: ServedParameters) -> None:
    counts = StepCounts(executors)
    waiting: dict[int, ServerOrder] = {}
    pause = NAP
    while executors:
        moved = False
        for worker, executor in list(executors.items()):
            order = waiting.pop(worker, None) or executor.attendant.overhear()
            if order is None:
                continue
            if order.word == "update" and not counts.allow(worker, served.bound):
                waiting[worker] = order
                continue
            moved = True
            if order.word == "end":
                counts.leave(worker)
                executors.pop(worker).attendant.close()
                continue
            executor.obey(order)
            if order.word == "update":
                counts.count(worker, served.chunks)
            elif counts.round < served.round:
                counts = StepCounts(executors, served.round)
        pause = NAP if moved else min(LONGEST_NAP, 1.5 * pause)
        if not moved:
            if pause >= LONGEST_NAP:
                waiting.update(_last_words(executors, waiting))
            time.sleep(pause)


def _welcome(executor: OrderExecutor) -> OrderExecutor:
    """Carry out a worker's orders up to `ready`.

    Allocations are collective among servers, so all servers must welcome the workers in the same order.
    """
    executor.attendant.comm.get_ready()
    while True:
        order = executor.attendant.hear()
        executor.obey(order)
        if order.word == "ready":
            return executor


def _last_words(executors: dict[int, OrderExecutor], waiting: dict[int, ServerOrder]) -> dict[int, ServerOrder]:
    """Return the last orders of lost workers. Raises PeerLost if a lost worker has sent no further order."""
    orders = {}
    for worker, executor in executors.items():
        why_lost = executor.attendant.lost() if worker not in waiting else None
        order = executor.attendant.overhear() if why_lost else None
        if why_lost and order is None:
            raise PeerLost(f"rank {worker} {why_lost} while servers waited for it", rank=worker)
        if order is not None:
            orders[worker] = order
    return orders


class StepCounts:
    """Counts the steps that each worker has finished in a round, on one server.

    A server cannot use the step numbers of workers, because after a checkpoint these do not start at 0.
    """

    def __init__(self, workers: Iterable[int], round: int = 0) -> None:
        self.round = round
        self._done: dict[int, int] = dict.fromkeys(workers, 0)
        self._chunks: dict[int, int] = dict.fromkeys(self._done, 0)  # chunks done of each worker's current step

    def allow(self, worker: int, bound: int | None) -> bool:
        """Return whether a worker that finishes its step would be at most `bound` steps ahead of the slowest one."""
        return bound is None or self._done[worker] + 1 - min(self._done.values()) <= bound

    def count(self, worker: int, chunks: int) -> None:
        """Count a finished chunk of a worker. The last of `chunks` chunks ends the worker's step."""
        self._chunks[worker] += 1
        if self._chunks[worker] == chunks:
            self._chunks[worker] = 0
            self._done[worker] += 1

    def leave(self, worker: int) -> None:
        """Forget a worker that has left, so that other workers do not wait for it."""
        del self._done[worker]

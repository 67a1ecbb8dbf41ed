"""The Board of rank 0 over torch.distributed. Ranks that share memory use comm/shm/board.py instead."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.errors import PeerLost


class HasDeadline(Protocol):
    """The part of a comm that a board needs."""

    deadline: float

    def keep(self, board: GroupBoard) -> None:
        """Keep a freed board for reuse."""


class GroupBoard:
    """A Board in which each number is one broadcast. Readers post the next few receives in advance."""

    AHEAD = 8

    def __init__(self, comm: HasDeadline, group: Any, first: int) -> None:
        self._comm, self._group, self._first = comm, group, first
        self._posted: deque[tuple[Tensor, Any]] = deque()
        self._coming = 0  # announced numbers whose receive is not posted yet

    def free(self) -> None:
        """Give the board back for reuse by the next plan. Call it between steps, in the same order on all ranks."""
        self._comm.keep(self)

    def expect(self, count: int) -> None:
        self._coming += count
        self._listen()

    def _listen(self, least: int = 0) -> None:
        while len(self._posted) < max(least, min(self.AHEAD, len(self._posted) + self._coming)):
            self._coming = max(0, self._coming - 1)
            self._post()

    def say(self, value: int) -> None:
        self._post(value)
        while self._posted and self._posted[0][1].is_completed():
            self._posted.popleft()

    def _post(self, value: int = 0) -> None:
        number = torch.tensor([value], dtype=torch.int64)
        self._posted.append((number, dist.broadcast(number, self._first, group=self._group, async_op=True)))

    def heard(self) -> int | None:
        self._listen(1)
        number, work = self._posted[0]
        if not work.is_completed():
            return None
        return self._take(number, work, self._comm.deadline, "")

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        self._listen(1)
        return self._take(*self._posted[0], self._comm.deadline if deadline is None else deadline, key)

    def _take(self, number: Tensor, work: Any, seconds: float, key: object) -> int:
        try:
            work.wait(timedelta(seconds=seconds))
        except RuntimeError as problem:
            raise PeerLost(
                f"rank {self._first} stopped answering before it announced what to send next, {key}",
                why=first_line(problem),
                rank=self._first,
            ) from None
        self._posted.popleft()
        self._listen()
        return int(number)


def first_line(problem: BaseException) -> str:
    """Return the message of a torch.distributed error without its native stack."""
    return str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__

"""What rank 0 says, over torch.distributed: see board.py for ranks that share memory."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.errors import PeerLost


class Comm(Protocol):
    """What a board needs of its comm."""

    deadline: float


class GroupBoard:
    """Broadcasts of one number each; those who listen have the next few posted, so that they can come at any time."""

    AHEAD = 8

    def __init__(self, comm: Comm, group: Any, first: int) -> None:
        self._comm, self._group, self._first = comm, group, first
        self._posted: deque[tuple[Tensor, Any]] = deque()
        self._coming = 0  # that nobody listens for yet

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
                f"rank {self._first} stopped answering while it was to say what leaves next, {key}",
                why=first_line(problem),
                rank=self._first,
            ) from None
        self._posted.popleft()
        self._listen()
        return int(number)


def first_line(problem: BaseException) -> str:
    """What torch.distributed says went wrong, without its stack."""
    return str(problem).splitlines()[0][:200] if str(problem) else type(problem).__name__

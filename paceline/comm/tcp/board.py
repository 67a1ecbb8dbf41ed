"""The Board of rank 0 over control connections, so that its numbers never wait behind data."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from paceline.comm.tcp.mesh import WORD
from paceline.errors import PeerLost

if TYPE_CHECKING:
    from paceline.comm.tcp.mesh import Mesh


class TcpBoard:
    """A Board over TCP. Rank 0 of a mesh sends every number to all others, which read the numbers in order."""

    def __init__(self, mesh: Mesh, number: int) -> None:
        self._mesh, self._number = mesh, number & 0xFFFF
        with mesh.station.pump.state:
            self._words = mesh.words.setdefault(self._number, deque())

    def say(self, value: int) -> None:
        body = value.to_bytes(8, "big", signed=True)
        with self._mesh.station.pump.state:
            for peer in range(self._mesh.size):
                if peer != self._mesh.rank:
                    self._mesh.post(peer, WORD, number=self._number, body=body)

    def expect(self, count: int) -> None:
        """Do nothing: numbers that arrive are kept until they are read."""

    def heard(self) -> int | None:
        return self._words.popleft() if self._words else None

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        mesh = self._mesh
        limit = mesh.station.deadline if deadline is None else deadline
        mesh.wait_until(lambda: bool(self._words) or mesh.problem is not None or mesh.has_left(0), limit)
        if self._words:
            return self._words.popleft()
        mesh.check()
        why = "left" if mesh.has_left(0) else f"stopped answering after {limit:.1f} s"
        raise PeerLost(f"{mesh.name(0)} {why} before it announced what to send next, {key}", rank=0)

    def free(self) -> None:
        """Forget the numbers that were not read."""
        self._mesh.words.pop(self._number, None)

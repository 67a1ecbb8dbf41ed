"""What is under way in torch.distributed: one work, several as one, and the pieces of a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from paceline.comm.groupboard import first_line
from paceline.errors import PeerLost


class Waited(Protocol):
    """The comm that a work belongs to."""

    rank: int

    def limit(self, deadline: float | None) -> tuple[timedelta, ...]: ...


class TorchWork:
    """A torch.distributed work handle with what is left to do after it."""

    def __init__(self, comm: Waited, work: Any, what: str, after: Callable[[], Any] | None = None) -> None:
        self._comm, self._work, self._what, self._after = comm, work, what, after

    def wait(self, deadline: float | None = None) -> None:
        if self._work is None:
            return
        try:
            self._work.wait(*self._comm.limit(deadline))
        except RuntimeError as problem:
            raise PeerLost(
                f"a rank stopped answering rank {self._comm.rank} in {self._what}", why=first_line(problem)
            ) from None
        self._finish()

    def done(self) -> bool:
        if self._work is None:
            return True
        if not self._work.is_completed():
            return False
        self.wait()
        return True

    def then(self, after: Callable[[], Any]) -> TorchWork:
        """One thing more to do at the end."""
        before = self._after
        self._after = after if before is None else lambda: (before(), after())
        return self

    def _finish(self) -> None:
        self._work = None
        if self._after is not None:
            self._after()


class Together:
    """Several works of torch.distributed as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self, *limit: timedelta) -> None:
        for work in self._works:
            work.wait(*limit)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class Added:
    """The pieces of one sum_by: an owner hears all givers, combines, and tells them what became of it.

    Owners that only serve do so at once; a rank that also trains does it when it waits.
    """

    def __init__(self, owned: Sequence[tuple[Any, Callable[[], Sequence[Any]]]], rest: Sequence[Any]) -> None:
        self._owned, self._rest = list(owned), list(rest)

    def wait(self, *limit: timedelta) -> None:
        for heard, answer in self._owned:
            heard.wait(*limit)
            self._rest += answer()
        self._owned = []
        Together(self._rest).wait(*limit)

    def is_completed(self) -> bool:
        """Only a look: answering here would take part in the training thread's time."""
        return not self._owned and Together(self._rest).is_completed()

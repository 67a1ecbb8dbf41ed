"""Handles on operations of torch.distributed: a single work, several works as one, and the pieces of a sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from paceline.comm.torch.groupboard import first_line
from paceline.comm.transport import Work
from paceline.errors import PeerLost


class HasLimit(Protocol):
    """The part of a comm that a work needs."""

    rank: int

    def limit(self, deadline: float | None) -> tuple[timedelta, ...]: ...


class TorchWork(Work):
    """A torch.distributed work with callbacks to run when it is finished."""

    def __init__(self, comm: HasLimit, work: Any, what: str, after: Callable[[], Any] | None = None) -> None:
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
        """Run `after` when the work is finished."""
        before = self._after
        self._after = after if before is None else lambda: (before(), after())
        return self

    def _finish(self) -> None:
        self._work = None
        if self._after is not None:
            self._after()


class TorchWorks:
    """Several works of torch.distributed as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self, *limit: timedelta) -> None:
        for work in self._works:
            work.wait(*limit)

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class OwnedPieces:
    """The pieces of one sum_by. An owner receives a piece from all givers, combines it, and sends the result back.

    Combining and answering happen in wait(). A server calls wait() at once; a rank that also trains calls it later.
    """

    def __init__(self, owned: Sequence[tuple[Any, Callable[[], Sequence[Any]]]], rest: Sequence[Any]) -> None:
        self._owned, self._rest = list(owned), list(rest)

    def wait(self, *limit: timedelta) -> None:
        for heard, answer in self._owned:
            heard.wait(*limit)
            self._rest += answer()
        self._owned = []
        TorchWorks(self._rest).wait(*limit)

    def is_completed(self) -> bool:
        """Return whether all messages are complete. It does not send answers, because that would delay training."""
        return not self._owned and TorchWorks(self._rest).is_completed()


class ComparedFirst:
    """A collective that starts once ranks have compared their calls. Collectives start in the order of the calls."""

    def __init__(self, comparison: Work, start: Callable[[], Any], begin_until: Callable[..., None]) -> None:
        self._comparison, self._start, self._begin_until = comparison, start, begin_until
        self._work: Any = None

    @property
    def begun(self) -> bool:
        return self._work is not None

    def begin(self, *limit: timedelta) -> None:
        """Wait for the comparison, then start the collective. Raises CallMismatch if ranks made different calls."""
        self._comparison.wait(*(one.total_seconds() for one in limit))
        self._work = self._start()

    def wait(self, *limit: timedelta) -> None:
        if not self.begun:
            self._begin_until(self, *limit)
        self._work.wait(*limit)

    def is_completed(self) -> bool:
        if not self.begun and self._comparison.done():
            self._begin_until(self)
        return self.begun and bool(self._work.is_completed())

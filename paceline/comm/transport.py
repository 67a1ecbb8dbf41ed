"""The interface of a transport: comms, works in progress, windows and the board of rank 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from paceline.types import Mixing, Piece

if TYPE_CHECKING:
    from torch import Tensor


class Work(Protocol):
    """An operation in progress. Every wait has a deadline in seconds; its error names the rank it waited for."""

    def wait(self, deadline: float | None = None) -> None: ...

    def done(self) -> bool: ...

    def landed(self) -> bool:
        """Whether it is done, without moving anything on."""
        return self.done()

    def round_done(self) -> bool:
        """Whether the round under way is through; a work of several rounds has more to come."""
        return self.done()

    def advance(self, limit: float = math.inf) -> float:
        """Start later rounds that can start, at most `limit` in all; return how many were started, or infinity."""
        return limit


class PrivateMemory(Protocol):
    """A result as this rank sees it: writes of this rank stay here until they are dropped."""

    vector: Tensor

    def written(self) -> bool:
        """Return whether anything was written since the last drop."""

    def drop(self) -> None:
        """Forget what was written: show what all ranks share."""

    def works(self) -> bool:
        """Return whether `written` can be trusted here. The view must be unused."""


class Buffers(Protocol):
    """The memory of one window: every rank owns one buffer per source, and a value of its own that others can get.

    Ranks wait for locks only. Reads and writes of one buffer never overlap, so a reader never sees half a write.
    Ranks are numbered as in the comm.
    """

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    def empty(self) -> Tensor:
        """Return a vector of zeros of the window's length and dtype."""

    def show(self, tensor: Tensor) -> None:
        """Set the value that others get from now on."""

    def put(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """Set this rank's buffer on the target to weight * tensor."""

    def accumulate(self, target: int, tensor: Tensor, weight: float = 1.0) -> Work:
        """Add weight * tensor to this rank's buffer on the target."""

    def get(self, source: int, weight: float = 1.0) -> Work:
        """Set the local buffer for a source to weight * the value that the source shows."""

    def fold(self, source: int, into: Tensor, weight: float = 1.0, *, clear: bool = False) -> bool:
        """Add weight * the buffer for a source to `into`; return whether it was written since it was cleared."""

    def versions(self) -> dict[int, int]:
        """Return how often each buffer was written since this rank last folded it."""

    def mutex(self, rank: int, deadline: float | None = None) -> AbstractContextManager[None]:
        """Hold a rank's lock inside the with-block; its users decide what it protects."""

    def free(self) -> None:
        """Release the window. Collective."""


class Board(Protocol):
    """Numbers that rank 0 announces (`say`) and the others read in order (`hear`), independent of collectives."""

    def say(self, value: int) -> None: ...

    def expect(self, count: int) -> None:
        """Announce `count` more numbers, so that readers can prepare to receive them."""

    def heard(self) -> int | None:
        """Return the next number if it has arrived, else None."""

    def hear(self, key: object = "", deadline: float | None = None) -> int:
        """Wait for the next number and return it."""

    def free(self) -> None:
        """Give the board back; nobody says or hears anything on it any more."""


class Comm(Protocol):
    """A transport among ranks. All ranks call collectives in the same order.

    `key` names the operation in error messages; it has no other meaning.
    """

    rank: int
    size: int
    placement: tuple[int, ...]
    deadline: float  # default time limit of a wait, in seconds
    shares_results: bool  # whether several ranks share the memory of allocate_result
    names_ranks: bool  # whether errors of a wait name the rank that it waited for
    service: Any  # the job's servers (comm/service.py), or None
    engines: int  # vectors that engines have exchanged over this comm so far, in order of creation

    def check_process(self) -> None:
        """Raise in a forked child of the process that joined, which must not use the comm."""

    def agree(self, verb: str, length: str = "", key: object = "") -> Work:
        """Compare a call with those that the other ranks are about to make; waiting raises CallMismatch.

        A comm that compares every call anyway returns a finished work.
        """

    def allocate(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """Allocate a vector that collectives use without a staging copy; only the first `givers` ranks get their own.

        Collective."""

    def allocate_result(self, numel: int, dtype: Any, givers: int | None = None) -> Tensor:
        """Allocate a vector for results. On shm all ranks share its memory, so callers only read it. Collective."""

    def private_view(self, result: Tensor) -> PrivateMemory | None:
        """Return a second mapping of a result that this rank may write unseen, or None if there is none."""

    def release(self, vector: Tensor) -> None:
        """Forget a vector that was allocated here; its memory is freed with the last reference. Not collective."""

    def all_sum(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def reduce_scatter(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def sum_by(
        self,
        src: Tensor,
        dst: Tensor,
        pieces: Sequence[Piece],
        givers: int,
        key: object = "",
        combine: Callable[[Tensor, Sequence[Tensor], int], None] = ...,
    ) -> Work:
        """dst = the sum of the first `givers` ranks' src, each piece added (or combined) by its owner."""

    def all_gather(self, src: Tensor, dst: Tensor, key: object = "") -> Work: ...

    def broadcast(self, tensor: Tensor, root: int = 0, key: object = "") -> Work: ...

    def barrier(self, deadline: float | None = None) -> None: ...

    def mix(self, src: Tensor, dst: Tensor, mixing: Mixing, key: object = "") -> Work:
        """dst = keep * src + the weighted src of other ranks, which must name this rank as a target."""

    def window(self, numel: int, dtype: Any, sources: Sequence[Sequence[int]], shows: bool = True) -> Buffers:
        """Create one-sided memory that sources[r] may write on rank r. `get` needs `shows`. Collective."""

    def split(self, groups: Sequence[Sequence[int]]) -> Comm:
        """Return the comm of this rank's group. Groups cover all ranks; ranks are positions in a group. Collective.

        It has an order of calls of its own: ranks need not call it and its whole in one order.
        """

    def board(self, length: int) -> Board:
        """Create a board of rank 0, which may be ahead of its readers by at most `length` numbers. Collective."""

    def progress(self) -> None:
        """Advance operations without waiting. Does nothing on a comm with background threads."""

    def received(self) -> tuple[int, ...]:
        """Return the bytes received so far from each rank."""

    def get_ready(self) -> None:
        """Allocate now what would be allocated on first use. Collective."""

    def why_lost(self, rank: int) -> str | None:
        """Return why a rank can answer no more, or None if it may answer or the comm cannot tell without waiting."""

    def close(self, failure: str = "") -> None: ...

"""Rules that decide which member computes which virtual shards. They use no clock, socket or torch.

A task is one virtual shard over K consecutive steps. What a step contains does not depend on its tasks: they only
decide which member computes it. At a border, after a multiple of K steps, the coordinator may deal the tasks anew:

    seconds of a shard    rank 0  0.010   rank 1  0.010   rank 2  0.010   rank 3  0.040
    equal deal            0 1     2 3     4 5     6 7          the others wait for rank 3
    by seconds            0 1 2   3 4     5 6     7

Every member has a contiguous range of shards, by rank, because the sum over shards is a tree (train/shards.py). A new
deal is a new generation, so that a lost member's tasks and a slow member's tasks change hands in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median

GAIN = 0.1  # a deal is changed if the slowest member then needs less time by this share
SEEN = 3  # steps of a member after which its seconds are known
LEAD = 3  # steps before the end of tasks at which members are told of a new deal
KEPT = 50  # latest steps of a member; its seconds are their median


def shares_of(shards: int, members: int) -> tuple[range, ...]:
    """Deal virtual shards to members: contiguous ranges whose lengths differ by at most one, long ones first."""
    each, more = divmod(shards, members)
    return ranges_of([each + (rank < more) for rank in range(members)])


def ranges_of(lengths: Sequence[int]) -> tuple[range, ...]:
    """Return contiguous ranges of shards with these lengths, by rank."""
    return tuple(range(low, high) for low, high in pairwise(accumulate(lengths, initial=0)))


def dealt(shards: int, seconds: Sequence[float | None]) -> tuple[int, ...]:
    """Return the number of shards of each member, given its seconds per shard; None if they are not known.

    Every member has at least one. The deal is equal unless that is slower than the best deal by GAIN or more.
    """
    equal = tuple(map(len, shares_of(shards, len(seconds))))
    known = filled(seconds)
    best = fastest(shards, known)
    return best if worth(equal, best, known) else equal


def filled(seconds: Sequence[float | None]) -> list[float]:
    """Return the seconds of all members; a member whose seconds are not known counts as the median of the others."""
    known = [value for value in seconds if value is not None]
    middle = median(known) if known else 1.0
    return [middle if value is None else value for value in seconds]


def fastest(shards: int, seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the deal whose slowest member is done first: each next shard goes to the member that ends it first."""
    lengths = [1] * len(seconds)
    for _ in range(shards - len(seconds)):
        rank = min(range(len(seconds)), key=lambda rank: (lengths[rank] + 1) * seconds[rank])
        lengths[rank] += 1
    return tuple(lengths)


def worth(now: Sequence[int], then: Sequence[int], seconds: Sequence[float]) -> bool:
    """Return whether a deal is faster than the current one by GAIN or more."""
    return span(now, seconds) > (1 + GAIN) * span(then, seconds)


def span(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the seconds in which the slowest member computes its shards of a step."""
    return max(length * value for length, value in zip(lengths, seconds, strict=True))


def at_border(steps: int, every: int) -> bool:
    """Return whether tasks end after so many committed steps."""
    return every > 0 and steps % every == 0


def near_border(steps: int, every: int) -> bool:
    """Return whether the current tasks end within a few steps, so that a new deal must be decided now."""
    return every > 0 and -steps % every < LEAD


class Speeds:
    """The seconds per shard of every member, from the steps that it has reported."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._seen: dict[str, deque[float]] = {}

    def hear(self, member: str, seconds: float, shards: int) -> None:
        """Note the seconds in which a member has computed its shards of a step."""
        if seconds > 0 and shards > 0:
            self._seen.setdefault(member, deque(maxlen=self._kept)).append(seconds / shards)

    def of(self, members: Sequence[str]) -> list[float | None]:
        """Return the seconds per shard of members, None for those that have reported few steps."""
        seen = [self._seen.get(member, ()) for member in members]
        return [median(values) if len(values) >= SEEN else None for values in seen]

    def keep(self, members: Sequence[str]) -> None:
        """Forget everyone who is not a member any more."""
        self._seen = {member: values for member, values in self._seen.items() if member in members}


def computing(parts: Mapping[str, object]) -> float:
    """Return the seconds that a member has spent on its shards of a step, among the parts that it has reported."""
    values = (parts.get(name, 0.0) for name in ("data", "compute", "pack"))
    return sum(float(value) for value in values if isinstance(value, (int, float)) and 0 <= value < 1e6)

"""Which members form the group, and which steps count: the rules, without clocks, sockets or torch.

A job is a sequence of generations. A generation has fixed members and commits steps by itself, on the data plane:

    compute -> exchange -> vote(ok) -> all votes are there, all ok, no fence -> update

Whoever suspects a member raises the fence, leaves the generation and sends a Report. When every member that lives
has left, the registry decides which steps count, and forms the next generation.

    shm   a step counts if anybody saw all votes after the fence, or has updated: votes lie in memory that outlives
          their owners, so that whoever updated had seen what the others see when they leave
    tcp   a step counts if all who live have its result: whoever updated had heard from all that they have it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from paceline.errors import PacelineError

WAIT, COMMIT, SKIP, LEAVE = "wait", "commit", "skip", "leave"


@dataclass(frozen=True, slots=True)
class Report:
    """What a member knows when it waits for a generation.

    generation   the one it has left; 0 if it was in none
    committed    steps that it has applied
    ready        it could apply one more: it saw all votes (shm), or has the result (tcp)
    suspects     members of the generation that it knows to be dead or silent
    holds        it has the state of training after `committed` steps
    """

    member: str
    generation: int = 0
    committed: int = 0
    ready: bool = False
    suspects: tuple[str, ...] = ()
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """One generation: its members by rank, and the steps that were committed before it.

    Rank 0 holds the state of training, or begins with its own; those in `fresh` get it from rank 0.
    """

    generation: int
    members: tuple[str, ...]
    steps: int
    fresh: tuple[str, ...] = ()


def verdict_of(posted: Sequence[bool], votes: Sequence[bool], fenced: bool) -> str:
    """Return what a member does about a step after it has voted. `fenced` must have been read after the votes."""
    if not all(posted):
        return LEAVE if fenced else WAIT
    if fenced:
        return LEAVE
    return COMMIT if all(votes) else SKIP


def steps_that_count(rule: str, reports: Collection[Report]) -> int:
    """Return the steps that count when these members, the living ones of a generation, have left it."""
    most = max(report.committed for report in reports)
    if rule == "shm":
        return max(report.committed + report.ready for report in reports)
    if any(report.committed != most for report in reports):
        return most
    return most + all(report.ready for report in reports)


class BrokenPromise(PacelineError):
    """Reports that no history of the protocol can lead to."""


class Registry:
    """The coordinator's part of the protocol. Every change of `group` must be on disk before anybody hears of it.

    start     members that the first generation waits for
    maximum   members of a generation at most; more wait outside
    minimum   members that a generation needs
    """

    def __init__(self, *, start: int, minimum: int = 1, maximum: int = 8, rule: str = "shm") -> None:
        self.start, self.minimum, self.maximum, self.rule = start, minimum, maximum, rule
        self.group: Group | None = None
        self.watermark = 0  # steps that members have told of
        self.waiting: dict[str, Report] = {}
        self.unseen: set[str] = set()  # members of a group that was read from the journal and not heard of since
        self._gone: set[str] = set()
        self._dead: set[str] = set()
        self.finished = False  # a member has made all its steps: nothing begins again

    def resume(self, group: Group | None, watermark: int) -> None:
        """Go on after a restart: members of the group may still be at work, and will report again."""
        self.group, self.watermark = group, watermark
        self.unseen = set(group.members) if group else set()

    # what happens -------------------------------------------------------------------------------

    def hear(self, member: str) -> None:
        """A member has connected; it is at work, or will report soon."""
        self.unseen.discard(member)
        self._gone.discard(member)
        self._dead.discard(member)

    def arrive(self, report: Report) -> None:
        """A member waits for a generation. One of an old generation has lost its place and its right to decide."""
        self.hear(report.member)
        if self.group is not None and report.generation not in (0, self.group.generation):
            report = replace(report, generation=0, ready=False, holds=False)
        self.waiting[report.member] = report

    def lose(self, member: str, *, dead: bool) -> None:
        """A member has died, or cannot be reached; one that is not known to be dead may still be at work."""
        self.waiting.pop(member, None)
        self.unseen.discard(member)
        self._gone.add(member)
        if dead:
            self._dead.add(member)

    def forget_unseen(self) -> None:
        """Give up members that have not been heard of since a restart."""
        for member in tuple(self.unseen):
            self.lose(member, dead=False)

    def tell(self, generation: int, steps: int) -> None:
        """A member of a generation has committed so many steps."""
        if self.group is not None and generation == self.group.generation:
            self.watermark = max(self.watermark, steps)

    # what follows -------------------------------------------------------------------------------

    @property
    def wants_change(self) -> bool:
        """Whether members at work must come back, because somebody waits who could be one of them."""
        if self.group is None:
            return False
        outside = [member for member in self.waiting if not self._survives(member)]
        return bool(outside) and len(self._at_work()) + len(self.waiting) > 0 and self._room() > 0

    def _room(self) -> int:
        return self.maximum - len(self._at_work()) - sum(self._survives(member) for member in self.waiting)

    def _survives(self, member: str) -> bool:
        return self.group is not None and self.waiting[member].generation == self.group.generation

    def _at_work(self) -> list[str]:
        """Members of the group that have not left it, as far as is known."""
        if self.group is None:
            return []
        return [m for m in self.group.members if m not in self._gone and m not in self.waiting]

    @property
    def lacking(self) -> str:
        """Why those who wait get no group yet."""
        here = len(self.waiting)
        if self.group is None:
            return f"{here} of {self.start} workers are here; the first group waits for all of them"
        if here < self.minimum:
            return f"{here} members are here; a group needs at least {self.minimum}"
        names = ", ".join(sorted(self._at_work()))
        return f"members of generation {self.group.generation} have not left it yet: {names}" if names else ""

    def form(self) -> Group | None:
        """Form the next generation if everybody whom it must wait for is here; the caller journals it, then tells."""
        return self._first() if self.group is None else self._next(self.group)

    def _first(self) -> Group | None:
        if len(self.waiting) < max(self.start, self.minimum):
            return None
        return self._take(1, self._best(), ())

    def _next(self, group: Group) -> Group | None:
        survivors = [member for member in group.members if member in self.waiting and self._survives(member)]
        reports = [self.waiting[member] for member in survivors]
        suspects = {name for report in reports for name in report.suspects}
        holders = tuple(member for member in survivors if self.waiting[member].holds)
        if not holders:
            return self._after_loss(group)
        if any(member not in suspects for member in self._at_work()):
            return None
        if len(self.waiting) < self.minimum:
            return None
        reports = [self.waiting[member] for member in holders]
        steps = steps_that_count(self.rule, reports)
        for report in reports:
            if not 0 <= steps - report.committed <= 1:
                raise BrokenPromise(f"{report} where {steps} steps count")
        return self._take(group.generation + 1, steps, holders)

    def _after_loss(self, group: Group) -> Group | None:
        """All who held the state are dead: begin again from what newcomers can load.

        Members that merely cannot be reached may go on without us, so that nothing begins before they are back.
        """
        if self.finished or not set(group.members) <= self._dead | set(self.waiting):
            return None
        if len(self.waiting) < max(self.minimum, 1):
            return None
        return self._take(group.generation + 1, self._best(), ())

    def _best(self) -> int:
        """Return the steps of the best state that somebody who waits has loaded."""
        return max(report.committed for report in self.waiting.values())

    def _take(self, generation: int, steps: int, holders: tuple[str, ...]) -> Group:
        """Make the generation: holders first; without any, the one who has loaded most is the source."""
        outside = [member for member in self.waiting if member not in holders]
        outside.sort(key=lambda member: -self.waiting[member].committed)
        chosen = (*holders, *outside)[: self.maximum]
        self.group = Group(generation, chosen, steps, chosen[max(1, len(holders)) :])
        for member in chosen:
            del self.waiting[member]
        self.watermark = steps
        self._gone.clear()
        self._dead.clear()
        self.unseen.clear()
        return self.group


def shares_of(shards: int, members: int) -> tuple[range, ...]:
    """Deal virtual shards to members: contiguous ranges whose lengths differ by at most one, long ones first."""
    each, more = divmod(shards, members)
    bounds = [rank * each + min(rank, more) for rank in range(members + 1)]
    return tuple(range(low, high) for low, high in pairwise(bounds))


def subtrees(shards: Iterable[int], total: int) -> tuple[range, ...]:
    """Cut a contiguous range of shards into the largest whole subtrees of the binary tree over `total` shards."""
    mine = sorted(shards)
    trees: list[range] = []
    at = mine[0] if mine else 0
    while mine and at <= mine[-1]:
        width = 1
        while at % (2 * width) == 0 and at + 2 * width <= mine[-1] + 1:
            width *= 2
        trees.append(range(at, at + width))
        at += width
    assert all(tree.stop <= total for tree in trees)
    return tuple(trees)

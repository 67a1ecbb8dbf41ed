"""Rules that decide which members form the group and which steps count. They use no clock, socket or torch.

A job is a sequence of generations. A generation has fixed members and commits steps by itself, on the data plane:

    compute -> exchange -> vote(ok) -> all votes are there, all ok, no fence -> update

A member that suspects another one raises the fence, leaves the generation and sends a Report. When all living members
have left, the registry decides which steps count, and forms the next generation.

    shm   a step counts if any member saw all votes after the fence, or has updated: votes are in memory that outlives
          their owners, so a member that updated saw the same votes that others see when they leave
    tcp   a step counts if all living members have its result: a member that updated knew that all had it
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from paceline.elastic.tasks import KEPT, SEEN, Speeds, dealt, filled, worth
from paceline.errors import PacelineError

WAIT, COMMIT, SKIP, LEAVE = "wait", "commit", "skip", "leave"


@dataclass(frozen=True, slots=True)
class Report:
    """The facts that a member reports while it waits for a generation.

    generation   the generation that it has left; 0 if there was none
    committed    steps that it has applied
    ready        whether it could apply one more step: it saw all votes (shm), or has the result (tcp)
    suspects     members of the generation that it knows to be dead or silent
    holds        whether it has the state of training after `committed` steps
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

    Rank 0 has the state of training, or starts with its own initial state. Members in `fresh` get it from rank 0.
    `lengths` are the numbers of virtual shards of the members, by rank; empty means an equal deal.
    """

    generation: int
    members: tuple[str, ...]
    steps: int
    fresh: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()


def verdict_of(posted: Sequence[bool], votes: Sequence[bool], fenced: bool) -> str:
    """Return what a member does with a step after it has voted. `fenced` must be read after the votes."""
    if not all(posted):
        return LEAVE if fenced else WAIT
    if fenced:
        return LEAVE
    return COMMIT if all(votes) else SKIP


def steps_that_count(rule: str, reports: Collection[Report]) -> int:
    """Return the number of steps that count. All living members of a generation have left it with these reports."""
    most = max(report.committed for report in reports)
    if rule == "shm":
        return max(report.committed + report.ready for report in reports)
    if any(report.committed != most for report in reports):
        return most
    return most + all(report.ready for report in reports)


def ready_of(rule: str, *, voted: bool, all_voted: bool) -> bool:
    """Return whether a member that leaves could apply the step under way.

    voted      it has voted for the step, so it has the whole result
    all_voted  it has seen the votes of all members, all for the step; looked at after the fence
    """
    return all_voted if rule == "shm" else voted


class BrokenPromise(PacelineError):
    """The reports contradict each other; the protocol cannot produce them."""


class Registry:
    """The coordinator's part of the protocol. Every change of `group` must be on disk before any member is notified.

    start     members that the first generation waits for
    maximum   the most members of a generation; further ones wait
    minimum   the fewest members of a generation
    task      steps of a task; tasks are dealt anew only at their borders, and never if it is 0
    """

    def __init__(
        self, *, start: int, minimum: int = 1, maximum: int = 8, rule: str = "shm", task: int = 0, shards: int = 0
    ) -> None:
        self.start, self.minimum, self.maximum, self.rule = start, minimum, maximum, rule
        self.task, self.shards = task, shards  # virtual shards of a step; 0 until a member has named them
        self.speeds = Speeds(max(SEEN, min(task, KEPT)))
        self.group: Group | None = None
        self.watermark = 0  # the most committed steps that members have reported
        self.waiting: dict[str, Report] = {}
        self.unseen: set[str] = set()  # members of a group from the journal that have not connected since
        self._gone: set[str] = set()
        self._dead: set[str] = set()
        self.finished = False  # a member has made all its steps: no generation is formed any more

    def resume(self, group: Group | None, watermark: int) -> None:
        """Continue after a restart. Members of the group may still be training, and will connect again."""
        self.group, self.watermark = group, watermark
        self.unseen = set(group.members) if group else set()

    # events -------------------------------------------------------------------------------------

    def hear(self, member: str) -> None:
        """Register that a member has connected. It is training, or will report soon."""
        self.unseen.discard(member)
        self._gone.discard(member)
        self._dead.discard(member)

    def arrive(self, report: Report) -> None:
        """Register that a member waits for a generation. A report about an older generation decides nothing."""
        self.hear(report.member)
        if self.group is not None and report.generation not in (0, self.group.generation):
            report = replace(report, generation=0, ready=False, holds=False)
        self.waiting[report.member] = report

    def answer_to(self, report: Report) -> Group | None:
        """Return the current group if its member has not heard of it: the answer was lost, or this is an old copy."""
        group = self.group
        if group is None or report.member not in group.members or report.generation >= group.generation:
            return None
        return group

    def lose(self, member: str, *, dead: bool) -> None:
        """Register that a member has died (`dead`), or cannot be reached and may still be training."""
        self.waiting.pop(member, None)
        self.unseen.discard(member)
        self._gone.add(member)
        if dead:
            self._dead.add(member)

    def forget_unseen(self) -> None:
        """Drop members that have not connected since a restart."""
        for member in tuple(self.unseen):
            self.lose(member, dead=False)

    def tell(self, generation: int, steps: int) -> None:
        """Register that a member of a generation has committed `steps` steps."""
        if self.group is not None and generation == self.group.generation:
            self.watermark = max(self.watermark, steps)

    def time(self, member: str, generation: int, seconds: float) -> None:
        """Note the seconds in which a member of a generation has computed its shards of a step."""
        group = self.group
        if group is not None and generation == group.generation and group.lengths and member in group.members:
            self.speeds.hear(member, seconds, group.lengths[group.members.index(member)])

    # decisions ----------------------------------------------------------------------------------

    @property
    def wants_change(self) -> bool:
        """Whether training members must return after their step, because a process that could be a member waits."""
        if self.group is None:
            return False
        outside = [member for member in self.waiting if not self._survives(member)]
        return bool(outside) and len(self._at_work()) + len(self.waiting) > 0 and self._room() > 0

    @property
    def wants_deal(self) -> bool:
        """Whether another deal of tasks to the same members would be faster. The speed of all must be known."""
        group = self.group
        if not self.task or group is None or not group.lengths or self.waiting or self._gone:
            return False
        seconds = self.speeds.of(group.members)
        if None in seconds:
            return False
        return worth(group.lengths, dealt(self.shards, seconds), filled(seconds))

    @property
    def _most(self) -> int:
        return min(self.maximum, self.shards) if self.shards else self.maximum

    def _room(self) -> int:
        return self._most - len(self._at_work()) - sum(self._survives(member) for member in self.waiting)

    def _survives(self, member: str) -> bool:
        return self.group is not None and self.waiting[member].generation == self.group.generation

    def _at_work(self) -> list[str]:
        """Members of the group that are not known to have left it."""
        if self.group is None:
            return []
        return [m for m in self.group.members if m not in self._gone and m not in self.waiting]

    @property
    def deserted(self) -> bool:
        """Whether all members of the group are known to have ended."""
        return self.group is None or set(self.group.members) <= self._dead

    @property
    def lacking(self) -> str:
        """The reason why waiting members get no group yet."""
        here = len(self.waiting)
        if self.group is None:
            return f"{here} of {self.start} workers are here; the first group waits for all of them"
        if here < self.minimum:
            return f"{here} members are here; a group needs at least {self.minimum}"
        names = ", ".join(sorted(self._at_work()))
        return f"members of generation {self.group.generation} have not left it yet: {names}" if names else ""

    def form(self) -> Group | None:
        """Form the next generation if all members that it must wait for are here.

        The caller journals it, then sends it.
        """
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
        """Restart from a state that newcomers have loaded, because all members that held the current state are dead.

        Members that cannot be reached may still be training, so no generation starts before they are back.
        """
        if self.finished or not set(group.members) <= self._dead | set(self.waiting):
            return None
        if len(self.waiting) < max(self.minimum, 1):
            return None
        return self._take(group.generation + 1, self._best(), ())

    def _best(self) -> int:
        """Return the steps of the latest state that a waiting member has loaded."""
        return max(report.committed for report in self.waiting.values())

    def _take(self, generation: int, steps: int, holders: tuple[str, ...]) -> Group:
        """Make the generation, with holders of the state first.

        Without any, the member with the latest loaded state is rank 0.
        """
        outside = [member for member in self.waiting if member not in holders]
        outside.sort(key=lambda member: -self.waiting[member].committed)
        chosen = (*holders, *outside)[: self._most]
        self.speeds.keep(chosen)
        seconds = self.speeds.of(chosen) if self.task else [None] * len(chosen)
        lengths = dealt(self.shards, seconds) if self.shards else ()
        self.group = Group(generation, chosen, steps, chosen[max(1, len(holders)) :], lengths)
        for member in chosen:
            del self.waiting[member]
        self.watermark = steps
        self._gone.clear()
        self._dead.clear()
        self.unseen.clear()
        return self.group


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


def slot_of(member: str) -> int:
    """Return the launcher's slot in the name of a member, or -1 if it has none."""
    slot = member.partition("-")[0]
    return int(slot) if slot.isdecimal() else -1

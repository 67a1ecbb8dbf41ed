"""A member of an elastic job: it enters generations, votes on steps, and leaves when a member is lost.

begin    wait for a generation, and make its comm
vote     after the exchange of a step: make one small all-gather, then check the fence
leave    raise the fence, check again whether the step may count, report, and learn whether it does
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.comm.faults import fault
from paceline.elastic.client import Client
from paceline.elastic.contact import Contact
from paceline.elastic.protocol import COMMIT, LEAVE, SKIP, Group, ready_of, verdict_of
from paceline.elastic.tasks import at_border, ranges_of, shares_of
from paceline.elastic.transports import BROKEN, DATA, LONG, STEP, ShmTransport, Signs, Transport
from paceline.errors import PacelineError, PeerLost
from paceline.types import View

OK, CHANGE, PARTING = 1, 2, 4  # bits of a vote: the result is finite; the group changes; this member leaves
PRINT = 8  # the bit from which on a vote has the fingerprint of the member's state, now and then
LEAST_SILENCE = 2.0  # seconds without progress after which a member may be evicted
FIRST_SILENCE = 60.0  # the same limit before enough steps were timed
DATA_SILENCE = 60.0  # the same limit while a member waits for its data
SEEN = 5  # commits after which the time of a step is known
PATIENCE = 600.0  # seconds that a member waits for a coordinator
GRACE = 1.0  # seconds in which a peer whose connection ended reports to the coordinator, if it lives
STALLED = 2.0  # seconds without a group after which a member says what it waits for


class ElasticPresence:
    """The membership of this process in an elastic job. Every global batch is cut into `shards` virtual shards."""

    def __init__(
        self, contact: Contact | Path, member: str, *, shards: int = 8, transport: Transport | None = None
    ) -> None:
        contact = Contact.in_folder(contact) if isinstance(contact, Path) else contact
        if transport is None:
            assert contact.folder is not None
            transport = ShmTransport(contact.folder)
        self.member, self._shards, self._transport = member, shards, transport
        self.client = Client(contact, member, {**transport.about(), "shards": shards})
        self.group: Group | None = None
        self._comm: Any = None
        self._signs: Signs | None = None
        self.committed, self.holds = 0, False
        self._inside = False  # in a generation that this member has not left
        self.parting = self.gone = False  # this member leaves the job after the current step; has left it
        self._votes: Any = None
        self._work: Any = None
        self._voted = False
        self._suspects: set[str] = set()
        self._silence = 0.0  # seconds in which a suspect made no progress
        self.taken = 0  # shards that this member has computed of the step under way
        self._doubts: set[str] = set()  # members whose connection ended: dead, or alive and about to report
        self._beats: dict[int, tuple[int, float]] = {}
        self._commits = 0
        self._since: float | None = None  # the last commit in this generation
        self._durations: list[float] = []  # of the last steps, without those in which the group changed

    @property
    def comm(self) -> Any:
        if self._comm is None:
            raise PacelineError("this worker is in no group yet", why="it enters one with its first batch or step")
        return self._comm

    @property
    def inside(self) -> bool:
        return self._inside

    @property
    def shards(self) -> range:
        """The virtual shards that this member computes."""
        return self.shares[self.comm.rank]

    @property
    def shares(self) -> tuple[range, ...]:
        """The virtual shards of all members, by rank."""
        group = self.group
        assert group is not None
        return ranges_of(group.lengths) if group.lengths else shares_of(self._shards, len(group.members))

    # entering -----------------------------------------------------------------------------------

    def begin(self) -> View:
        """Return the current generation. After leaving one, wait for the next. Exit if this member has left the job."""
        if self.gone:
            raise SystemExit(0)
        while not self._inside:
            if self.group is self.client.group or self.client.group is None:
                if self.group is None:
                    self._report(ready=False)
                self._await_group(self.group.generation if self.group else 0, ready=False)
            self._meet()
        assert self.group is not None
        comm = self.comm
        return View(comm.rank, comm.size, (0,) * comm.size, self.group.generation, self.group.members)

    def _await_group(self, after: int, *, ready: bool) -> Group:
        """Wait for a later generation. If none comes soon, report doubtful peers as suspects, and print the reason."""
        began, limit = time.monotonic(), PATIENCE
        if self._doubts and (group := self.client.wait_group(after, GRACE)) is not None:
            return group
        if self._doubts:
            self._suspects |= self._doubts
            self._report(ready=ready)
        if after and (group := self.client.wait_group(after, STALLED)) is not None:
            return group
        if after:
            self._say(f"this worker waits for a group: {self.client.lacks}")
        group = self.client.next_group(after, limit)
        if after:
            self._say(f"this worker has a group again, after {time.monotonic() - began:.1f} s")
        return group

    def _say(self, text: str) -> None:
        print(f"paceline: {text}", file=sys.stderr, flush=True)

    def _meet(self) -> None:
        group = self.client.group
        assert group is not None
        self.group, self._suspects, self._doubts, self._beats = group, set(), set(), {}
        self._silence, self._since = 0.0, None
        self._votes, self._work, self._voted = None, None, False
        fault("while entering")
        try:
            self._comm, self._signs = self._transport.enter(self.client, self._watch, self.silence)
        except PeerLost as problem:
            mine = group.members.index(self.member)
            if not self.client.lost and problem.rank is not None and problem.rank != mine:
                missing = self._suspects if self._transport.rule == "shm" else self._doubts
                missing.add(group.members[problem.rank])
            self._report(ready=False)
            return
        self._inside = True

    def _check_lost(self) -> None:
        self.client.poll()
        if self.client.lost:
            raise PeerLost(f"{', '.join(sorted(self.client.lost))} left the group")

    def ended(self) -> bool:
        """Return whether the group of this member has ended, so that nobody will commit the step under way."""
        if self._signs is None or not self._inside:
            return False
        self.client.poll()
        return self._signs.fenced() or bool(self.client.lost)

    def _watch(self, signs: Signs | None, late: Sequence[int]) -> None:
        """Check the fence, messages of the coordinator, and members without progress.

        Called while this member waits.
        """
        if signs is None:
            self._check_lost()
            return
        signs.beat()
        if signs.fenced():
            raise PeerLost("the group has ended")
        self._check_lost()
        now, quiet, silent = time.monotonic(), [], []
        for rank in late:
            seen, phase = signs.beats(rank), signs.phase(rank)
            if self._beats.get(rank, (None, now))[0] != seen or phase == LONG:
                self._beats[rank] = (seen, now)
            silence, limit = now - self._beats[rank][1], self.silence
            if phase == DATA and silence > 0.75 * limit and not signs.stopped(rank):
                limit = max(limit, DATA_SILENCE)
            if silence > 0.75 * limit:
                quiet.append(rank)
            if silence > limit:
                silent.append(rank)
        if silent:
            assert self.group is not None
            self._suspects |= {self.group.members[rank] for rank in quiet}  # a cut link silences several at once
            self._silence = now - self._beats[silent[0]][1]
            raise PeerLost(f"{signs.name(silent[0])} makes no progress", rank=silent[0])

    def beat(self) -> None:
        """Show other members that this member makes progress. Gradient hooks call it."""
        self._beats.clear()  # it waits for nobody now: silence is counted from its next wait on
        if self._signs is not None and self._inside:
            self._signs.beat()

    @contextlib.contextmanager
    def away(self, phase: int = LONG) -> Iterator[None]:
        """Prevent eviction for silence inside the with-block. The death of this member is still noticed.

        Whoever waits for its data (DATA) has DATA_SILENCE seconds."""
        signs = self._signs if self._inside else None
        if signs is not None:
            signs.declare(phase)
        try:
            yield
        finally:
            if signs is not None:
                signs.declare(STEP)

    def fetching(self) -> contextlib.AbstractContextManager[None]:
        """Declare that this member waits for its data inside the with-block."""
        return self.away(DATA)

    def note(self, what: str) -> None:
        """Ask the coordinator to record an incident of this member in the journal of the job."""
        incident = {"kind": "incident", "what": what, "member": self.member}
        self.client.say(incident if self.group is None else {**incident, "generation": self.group.generation})

    @property
    def first(self) -> bool:
        """Whether this member is rank 0 of the last group it was in. Rank 0 writes checkpoints."""
        group = self.client.group
        return group is not None and group.members[0] == self.member

    @property
    def silence(self) -> float:
        """Seconds without progress after which a member that others wait for is evicted."""
        if self._commits < SEEN or not self._durations:
            return FIRST_SILENCE
        steps = sorted(self._durations)
        return max(LEAST_SILENCE, 3 * steps[math.ceil(0.99 * len(steps)) - 1])

    # a step -------------------------------------------------------------------------------------

    def vote(self, ok: bool, fingerprint: int = 0) -> str:
        """Vote on the step: announce to all members that the result has arrived. Return COMMIT, SKIP or LEAVE.

        `fingerprint` has 32 bits that stand for the state before this step; 0 in steps in which nobody compares it.
        """
        import torch

        comm = self.comm
        self.client.poll()
        change = self.client.change or at_border(self.committed + 1, self.client.border)
        mine = torch.tensor([OK * ok + CHANGE * change + PARTING * self.parting + (fingerprint << PRINT)])
        self._votes = torch.zeros(comm.size, dtype=torch.int64)
        self._voted = ok  # this member has the whole result
        self._work = comm.all_gather(mine, self._votes, f"the votes on step {self.committed}")
        self._work.wait()
        # On tcp a fence is the end of connections: whoever has heard all votes may commit after it.
        fenced = self._transport.rule == "shm" and comm.counters.fenced()
        return verdict_of([True] * comm.size, self._all_ok(), fenced)

    def _all_ok(self) -> list[bool]:
        return [bool(vote & OK) for vote in self._votes.tolist()]

    def settle(self, verdict: str, parts: Mapping[str, float] | None = None) -> bool:
        """Count the step after a verdict that all members share.

        Return whether the group ends because a member joins or leaves.
        """
        counts = verdict == COMMIT
        if counts:
            self.count(parts)
        votes = self._votes.tolist()
        changes = any(vote & (CHANGE | PARTING) for vote in votes)
        changes = self._differ() or changes
        self._votes, self._work, self._voted = None, None, False
        return changes

    def _differ(self) -> bool:
        """Return whether members have different states. Those that most others do not agree with come back as new."""
        prints = [vote >> PRINT for vote in self._votes.tolist()]
        if len(set(prints)) == 1:
            return False
        most = max(prints, key=prints.count)
        for rank, seen in enumerate(prints):
            if seen != most and rank == self.comm.rank:
                self.holds = False
                self.note("differs")
                self._say("this worker has other bits than most; it takes the state of another one")
        return True

    def count(self, parts: Mapping[str, float] | None = None) -> None:
        """Count a step that was applied. `parts` are the seconds that this member has spent since the last one."""
        self.committed, self.taken = self.committed + 1, 0
        self._time_step(time.monotonic())
        assert self.group is not None
        seconds = {name: round(value, 6) for name, value in (parts or {}).items()}
        message = {"kind": "steps", "generation": self.group.generation, "steps": self.committed, "parts": seconds}
        self.client.say(message)

    def _time_step(self, now: float) -> None:
        if self._since is not None:
            self._durations = [*self._durations[-99:], now - self._since]
        self._commits, self._since = self._commits + 1, now

    def suspect(self, problem: PeerLost) -> None:
        """Remember the member that a failed wait was for.

        A member that left by itself is no suspect, because it reports, too.
        """
        rank, signs = problem.rank, self._signs
        if self.group is None or signs is None or rank is None or rank == self.comm.rank:
            return
        why = signs.why_lost(rank)
        if why in (None, "died"):
            self._suspects.add(self.group.members[rank])
        elif why == BROKEN:
            self._doubts.add(self.group.members[rank])

    def leave(self, *, orderly: bool = False) -> bool:
        """Leave the generation and wait for the next one. Return whether the step in progress counts.

        Pass `orderly` if all members leave at the same step, which each of them has committed or skipped.
        """
        assert self._signs is not None
        assert self.group is not None
        self._inside = False
        self._transport.fence(self._comm, orderly=orderly)
        fault("while leaving")
        all_voted = self._all_voted()
        ready = ready_of(self._transport.rule, voted=self._voted, all_voted=all_voted)
        if all_voted:  # others that saw it have ended the group before this member looked
            self._differ()
        self._work, self._voted = None, False
        for rank, name in enumerate(self.group.members):
            if self._signs.why_lost(rank) == "died":
                self._suspects.add(name)
        if self._transport.rule == "shm":
            self._comm.counters.leave("left")
        if self.parting:  # like a death at this point, but announced
            self.gone = True
            self.client.close(finished=False, parting=True)
            self._transport.close()
            return False
        self._report(ready=ready)
        group = self._await_group(self.group.generation, ready=ready)
        if self.member in group.fresh or not self.holds:
            self.holds = False
            return False
        return group.steps > self.committed

    def _all_voted(self) -> bool:
        """Return whether all members have voted for the step, as the shared memory shows."""
        if self._work is None or self._transport.rule != "shm":
            return False
        return bool(self._work.done()) and all(self._all_ok())

    def _report(self, *, ready: bool) -> None:
        self.client.report(
            {
                "kind": "report",
                "generation": self.group.generation if self.group else 0,
                "committed": self.committed,
                "ready": ready,
                "suspects": sorted(self._suspects),
                "holds": self.holds,
                "silence": self._silence,
                "shards": 0 if ready else self.taken,
            }
        )

    def close(self, *, finished: bool) -> None:
        if self.gone:
            return
        if self._comm is not None and self._inside:
            self._comm.close("ended")
        self._inside = False
        self.client.close(finished=finished, parting=self.parting)
        self._transport.close()


def member_name(slot: int) -> str:
    """Return an identity that no other process of the job has."""
    return f"{slot}-{os.getpid()}-{time.monotonic_ns() % 1_000_000:06d}"


__all__ = ["COMMIT", "LEAVE", "SKIP", "ElasticPresence", "member_name"]

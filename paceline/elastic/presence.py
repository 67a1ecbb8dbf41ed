"""A member of an elastic job on one host: it enters generations, votes on steps, and leaves when a member is lost.

begin    wait for a generation, and make its comm
vote     after the exchange of a step: make one small all-gather, then check the fence
leave    raise the fence, check again whether all have voted, report, and learn whether the step counts
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from paceline.comm.rendezvous import FolderStore
from paceline.comm.shm.shm import FutexCounters, ShmComm
from paceline.elastic.client import Client
from paceline.elastic.protocol import COMMIT, LEAVE, SKIP, Group, shares_of, verdict_of
from paceline.errors import PacelineError, PeerLost
from paceline.types import View

OK, CHANGE, PARTING = 1, 2, 4  # bits of a vote: the result is finite; a newcomer waits; this member leaves
LEAST_SILENCE = 2.0  # seconds without progress after which a member may be evicted
FIRST_SILENCE = 60.0  # the same limit before enough steps were timed
SEEN = 5  # commits after which the time of a step is known
ENTERING = 30.0  # seconds in which all members of a generation must meet
PATIENCE = 600.0  # seconds that a member waits for a coordinator


class FolderMeeting:
    """A store in the job's folder. A wait in it ends when the coordinator has lost a member."""

    def __init__(self, folder: Path, look: Callable[[], None]) -> None:
        self._store, self._look = FolderStore(folder), look

    def set(self, name: str, text: str) -> None:
        self._store.set(name, text)

    def get(self, name: str, seconds: float) -> str:
        limit = time.monotonic() + seconds
        while (text := self._store.look(name)) is None:
            self._look()
            if time.monotonic() > limit:
                raise PeerLost(f"no member announced {name!r} within {seconds:.0f} s")
            time.sleep(0.001)
        return text

    def claim(self, name: str, text: str) -> str:
        return self._store.claim(name, text)

    def look(self, name: str) -> str | None:
        return self._store.look(name)


class ElasticPresence:
    """The membership of this process in an elastic job. Every global batch is cut into `shards` virtual shards."""

    def __init__(self, folder: Path, member: str, *, shards: int = 8, segments: Path | None = None) -> None:
        self._folder, self.member, self._shards, self._segments = folder, member, shards, segments
        self.client = Client(folder, member)
        self.group: Group | None = None
        self._comm: ShmComm | None = None
        self.committed, self.holds = 0, False
        self._inside = False  # in a generation that this member has not left
        self.parting = self.gone = False  # this member leaves the job after the current step; has left it
        self._votes: Any = None
        self._work: Any = None
        self._suspects: set[str] = set()
        self._silence = 0.0  # seconds in which a suspect made no progress
        self.taken = 0  # shards that this member has computed of the step under way
        self._beats: dict[int, tuple[int, float]] = {}
        self._commits: list[float] = []

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
        assert self.group is not None
        return shares_of(self._shards, len(self.group.members))[self.comm.rank]

    # entering -----------------------------------------------------------------------------------

    def begin(self) -> View:
        """Return the current generation. After leaving one, wait for the next. Exit if this member has left the job."""
        if self.gone:
            raise SystemExit(0)
        while not self._inside:
            if self.group is self.client.group or self.client.group is None:
                if self.group is None:
                    self._report(ready=False)
                self.client.next_group(self.group.generation if self.group else 0, PATIENCE)
            self._meet()
        assert self.group is not None
        assert self._comm is not None
        nodes = (0,) * self._comm.size
        return View(self._comm.rank, self._comm.size, nodes, self.group.generation, self.group.members)

    def _meet(self) -> None:
        group = self.client.group
        assert group is not None
        self.group, self._suspects, self._beats, self._silence = group, set(), {}, 0.0
        self._votes = self._work = None
        try:
            self._comm = ShmComm(
                group.members.index(self.member),
                len(group.members),
                FolderMeeting(self._folder, self._check_lost),
                ENTERING,
                self._segments,
                f"workers-{group.generation}",
                watch=self._watch,
            )
        except PeerLost as problem:
            rank = problem.rank
            if not self.client.lost and (rank or 0) != group.members.index(self.member):
                self._suspects.add(group.members[rank or 0])  # rank 0 announces what the others map
            self._report(ready=False)
            return
        self._inside = True

    def _check_lost(self) -> None:
        self.client.poll()
        if self.client.lost:
            raise PeerLost(f"{', '.join(sorted(self.client.lost))} left the group")

    def ended(self) -> bool:
        """Return whether the group of this member has ended, so that nobody will commit the step under way."""
        if self._comm is None or not self._inside:
            return False
        self.client.poll()
        return self._comm.counters.fenced() or bool(self.client.lost)

    def _watch(self, counters: FutexCounters, late: Sequence[int]) -> None:
        """Check the fence, messages of the coordinator, and members without progress.

        Called while this member waits.
        """
        counters.beat()
        if counters.fenced():
            raise PeerLost("the group has ended")
        self._check_lost()
        now = time.monotonic()
        for rank in late:
            seen = counters.beats(rank)
            if self._beats.get(rank, (None, now))[0] != seen or counters.away(rank):
                self._beats[rank] = (seen, now)
            elif now - self._beats[rank][1] > self.silence:
                self._silence = now - self._beats[rank][1]
                raise PeerLost(f"{counters.name(rank)} makes no progress", rank=rank)

    def beat(self) -> None:
        """Show other members that this member makes progress. Gradient hooks call it."""
        if self._comm is not None and self._inside:
            self._comm.counters.beat()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Prevent eviction for silence inside the with-block. The death of this member is still noticed."""
        counters = self._comm.counters if self._comm is not None and self._inside else None
        if counters is not None:
            counters.declare(True)
        try:
            yield
        finally:
            if counters is not None:
                counters.declare(False)

    def note(self, what: str) -> None:
        """Ask the coordinator to write an incident of this member to its journal."""
        self.client.say({"kind": "incident", "what": what, "member": self.member})

    @property
    def first(self) -> bool:
        """Whether this member is rank 0 of the last group it was in. Rank 0 writes checkpoints."""
        group = self.client.group
        return group is not None and group.members[0] == self.member

    @property
    def silence(self) -> float:
        """Seconds without progress after which a member that others wait for is evicted."""
        if len(self._commits) < SEEN:
            return FIRST_SILENCE
        steps = sorted(later - first for first, later in pairwise(self._commits))
        return max(LEAST_SILENCE, 3 * steps[min(len(steps) - 1, int(0.99 * len(steps)))])

    # a step -------------------------------------------------------------------------------------

    def vote(self, ok: bool) -> str:
        """Vote on the step: announce to all members that the result has arrived. Return COMMIT, SKIP or LEAVE."""
        import torch

        comm = self.comm
        self.client.poll()
        mine = torch.tensor([OK * ok + CHANGE * self.client.change + PARTING * self.parting])
        self._votes = torch.zeros(comm.size, dtype=torch.int64)
        self._work = comm.all_gather(mine, self._votes, f"the votes on step {self.committed}")
        self._work.wait()
        return verdict_of([True] * comm.size, self._all_ok(), comm.counters.fenced())

    def _all_ok(self) -> list[bool]:
        return [bool(vote & OK) for vote in self._votes.tolist()]

    def settle(self, verdict: str, parts: Mapping[str, float] | None = None) -> bool:
        """Count the step after a verdict that all members share.

        Return whether the group ends because a member joins or leaves.
        """
        counts = verdict == COMMIT
        if counts:
            self.count(parts)
        changes = any(vote & (CHANGE | PARTING) for vote in self._votes.tolist())
        self._votes = self._work = None
        return changes

    def count(self, parts: Mapping[str, float] | None = None) -> None:
        """Count a step that was applied. `parts` are the seconds that this member has spent since the last one."""
        self.committed, self.taken = self.committed + 1, 0
        self._commits = [*self._commits[-99:], time.monotonic()]
        assert self.group is not None
        seconds = {name: round(value, 6) for name, value in (parts or {}).items()}
        message = {"kind": "steps", "generation": self.group.generation, "steps": self.committed, "parts": seconds}
        self.client.say(message)

    def suspect(self, problem: PeerLost) -> None:
        """Remember the member that a failed wait was for.

        A member that left by itself is no suspect, because it reports, too.
        """
        rank, comm = problem.rank, self._comm
        if self.group is None or comm is None or rank is None or rank == comm.rank:
            return
        if comm.counters.why_lost(rank) in (None, "died"):
            self._suspects.add(self.group.members[rank])

    def leave(self) -> bool:
        """Leave the generation and wait for the next one. Return whether the step in progress counts."""
        assert self._comm is not None
        assert self.group is not None
        self._inside = False
        counters = self._comm.counters
        counters.raise_fence()
        ready = self._work is not None and self._work.done() and all(self._all_ok())
        self._work = None
        for rank, name in enumerate(self.group.members):
            if counters.why_lost(rank) == "died":
                self._suspects.add(name)
        counters.leave("left")
        if self.parting:  # like a death at this point, but announced
            self.gone = True
            self.client.close(finished=False, parting=True)
            return False
        self._report(ready=ready)
        left = self.group.generation
        group = self.client.next_group(left, PATIENCE)
        if self.member in group.fresh or not self.holds:
            self.holds = False
            return False
        return group.steps > self.committed

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


def member_name(slot: int) -> str:
    """Return an identity that no other process of the job has."""
    return f"{slot}-{os.getpid()}-{time.monotonic_ns() % 1_000_000:06d}"


__all__ = ["COMMIT", "LEAVE", "SKIP", "ElasticPresence", "member_name"]

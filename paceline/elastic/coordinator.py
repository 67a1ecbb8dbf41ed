"""The coordinator of an elastic job: a process with one thread and a journal. Steps do not pass through it.

folder/address     where it listens; written again after a restart
folder/token       the job's token, readable by the user only
folder/journal.db  the facts that must survive a restart (journal.py)
folder/finished    exists when all steps were made: new members are not needed any more
folder/absent-K    exists if rank K has ended and is not restarted: the first group does not wait for it

member -> coordinator    hello, report, steps, ping, bye
any process with the token   status: the state of the job, for `paceline join` and `paceline watch` (status.py)
coordinator -> member    group (a generation), change (come back after this step), deal (come back at the end of the
                         tasks), lost (a member of the group died), waiting (why there is no group yet), end (all steps
                         were made), pong

`python -m paceline.elastic FOLDER --start 4 --max 8` starts it (__main__.py).
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.comm.faults import fault
from paceline.comm.peers import Peers
from paceline.comm.shm.memory import host_identity
from paceline.elastic.door import Link, open_door, tune
from paceline.elastic.frames import (
    ABSENT,
    FINISHED,
    BrokenFrame,
    Message,
    count_in,
    make_token,
    names_in,
    place_in,
    same,
    seconds_in,
    word_in,
)
from paceline.elastic.journal import Journal
from paceline.elastic.progress import Progress
from paceline.elastic.protocol import Group, Registry, Report, slot_of
from paceline.elastic.recoveries import Recoveries
from paceline.elastic.status import message_of, status_of
from paceline.elastic.tasks import computing, near_border
from paceline.elastic.terms import Terms
from paceline.errors import PacelineError

GRACE = 2.0  # seconds after a restart in which members connect again
LATE = 5.0  # seconds for the first message of a connection
SOON = 0.01  # seconds between two checks whether a process has ended
LONG = 10.0  # seconds without a group after which the reason is printed
MOST_PIDS = 1 << 22  # the kernel has no higher pid
QUIET = 1.0  # seconds between two checks of conditions that cause no event

log = logging.getLogger("paceline.coordinator")


class Coordinator:
    """Passes messages of members to a Registry, and writes the journal before it answers."""

    def __init__(
        self,
        folder: Path,
        registry: Registry,
        *,
        interface: str = "127.0.0.1",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._registry, self._clock = folder, registry, clock
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._token = make_token(folder)
        self.journal = Journal(folder / "journal.db")
        self._expected = registry.start  # workers that the launcher started; a restart does not change it
        registry.resume(self.journal.last(), self.journal.watermark())
        if registry.group is not None:
            registry.start = registry.minimum
        for member in [member for member in registry.unseen if self.journal.is_dead(member)]:
            registry.lose(member, dead=True)
        self._restarted = clock() if registry.unseen else None
        self._links: dict[str, Link] = {}
        self._strangers: set[Link] = set()
        self._peers, self._host = Peers(), host_identity()
        self._terms = Terms(registry)
        self._asked = False  # members have been told to return after their step
        self._dealing = False  # members have been told to return at the end of their tasks
        self._fenced: set[tuple[str, int]] = set()  # members of old generations whose report was noted
        self._doubtful: dict[str, int] = {}  # members without a connection whose process may still run
        self._lacking, self._since = "", clock()  # why there is no group, and since when
        self.recoveries, self._progress = Recoveries(), Progress(self.journal)
        self.refused, self.ended, self.deserted = 0, False, False
        self._selector = selectors.DefaultSelector()
        self._door = open_door(interface, folder / "address")
        self._door.setblocking(False)
        self._selector.register(self._door, selectors.EVENT_READ, None)
        host, port = self._door.getsockname()[:2]
        fresh = folder / ".address"
        fresh.write_text(f"{host}:{port}\n")
        fresh.replace(folder / "address")

    def serve(self) -> None:
        """Serve until every member has said goodbye."""
        while not self.ended:
            self.turn(QUIET)

    def turn(self, seconds: float) -> None:
        """Handle the events of the next `seconds`."""
        for key, _ in self._selector.select(min(seconds, SOON) if self._doubtful else seconds):
            if key.data is None:
                self._admit()
            else:
                self._read(key.data)
        now = self._clock()
        for link in [link for link in self._strangers if now - link.since > LATE]:
            self._refuse(link, "said nothing")
        if self._restarted is not None and now - self._restarted > GRACE:
            self._restarted = None
            self._forget_unseen()
            self.ended = self.ended or (self._registry.finished and not self._links)
        for member, pid in tuple(self._doubtful.items()):
            if member in self._links or self._peers.ended(pid):
                del self._doubtful[member]
                if member not in self._links:
                    self._registry.lose(member, dead=True)
                    self.recoveries.died(self.journal, member)
        if self._registry.group is None or not self._links:
            self._count_absent()
        self._form()
        self._explain(now)

    def _forget_unseen(self) -> None:
        """Drop members that have not reconnected since a restart.

        Members that may still run are checked again later.
        """
        for member in tuple(self._registry.unseen):
            dead, pid = self.journal.is_dead(member), self.journal.pid_of(member)
            self._registry.lose(member, dead=dead)
            if pid and not dead:
                self._peers.watch([pid])
                self._doubtful[member] = pid

    def _count_absent(self) -> None:
        """Do not wait for workers that have ended and are not restarted. End if they are all, and nobody has joined."""
        absent = len(list(self._folder.glob(f"{ABSENT}-*")))
        start = max(self._registry.minimum, self._expected - absent)
        if self._registry.group is None and start < self._registry.start:
            self._registry.start = start
            log.warning("%d of %d workers ended before the first group; it begins without them", absent, self._expected)
        if absent >= self._expected and not self._links and self._registry.deserted and not self.ended:
            complete = self._registry.finished or (self._folder / FINISHED).exists()
            self.ended, self.deserted = True, self._registry.group is not None and not complete

    def _explain(self, now: float) -> None:
        """Send the reason why there is no group to all waiting members. Print it if that state lasts."""
        lacking = self._registry.lacking if self._registry.waiting else ""
        if lacking != self._lacking:
            self._lacking, self._since = lacking, now
            for member in self._registry.waiting if lacking else ():
                if member in self._links:
                    self._links[member].send({"kind": "waiting", "why": lacking})
        elif lacking and now - self._since > LONG:
            self._since = now + 5 * LONG  # at most once per reason
            log.warning("%s", lacking)

    def close(self) -> None:
        for link in [*self._links.values(), *self._strangers]:
            link.channel.close()
        self._door.close()
        self._selector.close()
        self._peers.close()
        self.journal.close()

    # connections --------------------------------------------------------------------------------

    def _admit(self) -> None:
        try:
            channel, _ = self._door.accept()
        except OSError:
            return
        tune(channel)
        channel.settimeout(1.0)  # time limit for sending: a frozen member must not delay the others
        link = Link(channel, self._clock())
        self._strangers.add(link)
        self._selector.register(channel, selectors.EVENT_READ, link)

    def _read(self, link: Link) -> None:
        try:
            block = link.channel.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            self._part(link)
            return
        try:
            for message in link.inbox.feed(block):
                if link.channel.fileno() < 0:
                    return  # it has said goodbye; nothing that follows counts
                self._hear(link, message)
        except (PacelineError, KeyError, TypeError, ValueError) as problem:
            self._refuse(link, str(problem))

    def _refuse(self, link: Link, why: str) -> None:
        self.refused += 1
        log.warning("refused a connection: %s", why)
        if link.member:
            self._part(link)
            return
        if link.proven:
            link.send({"kind": "refused", "why": why})
        self._forget(link)

    def _forget(self, link: Link) -> None:
        self._strangers.discard(link)
        try:
            self._selector.unregister(link.channel)
        except (KeyError, ValueError):
            pass  # it is closed already
        link.channel.close()

    def _part(self, link: Link) -> None:
        """Handle the end of a connection: its member has died, or will reconnect."""
        self._forget(link)
        if not link.member or self._links.get(link.member) is not link:
            return
        del self._links[link.member]
        self.ended = self._registry.finished and not self._links
        dead = self._peers.ended(link.pid) if link.pid else False
        if link.pid and not dead:
            self._doubtful[link.member] = link.pid  # a process closes its connections a moment before it has ended
        group = self._registry.group
        self._registry.lose(link.member, dead=dead)
        if group is not None and link.member in group.members:
            self._note(what="died" if dead else "cut off", member=link.member, generation=group.generation)
            self._tell(group, {"kind": "lost", "member": link.member, "generation": group.generation})

    # messages -----------------------------------------------------------------------------------

    def _hear(self, link: Link, message: Message) -> None:
        if not link.member:
            self._greet(link, message)
        elif message["kind"] == "report":
            self._report(link, message)
        elif message["kind"] == "steps":
            self._count(link, message)
        elif message["kind"] == "ping":
            link.send({"kind": "pong"})
        elif message["kind"] == "incident":
            self._note(what=word_in(message, "what"), member=link.member)
        elif message["kind"] == "bye":
            self._leave(link, bool(message.get("finished")), parting=bool(message.get("parting")))
        else:
            raise BrokenFrame(f"a message of kind {message['kind']!r}")

    def _count(self, link: Link, message: Message) -> None:
        """Note a step that a member has committed, and the time of its parts."""
        registry, generation = self._registry, count_in(message, "generation")
        registry.tell(generation, count_in(message, "steps"))
        self.recoveries.end(self.journal, generation, self._clock())
        self.journal.mark(generation, registry.watermark)
        members = len(registry.group.members) if registry.group else 0
        parts = message.get("parts")
        parts = parts if isinstance(parts, dict) else {}
        self._progress.tell(generation, registry.watermark, members, parts)
        registry.time(link.member, generation, computing(parts))
        if not self._dealing and near_border(registry.watermark, registry.task) and registry.wants_deal:
            assert registry.group is not None
            self._dealing = True
            deal = {"kind": "deal", "generation": registry.group.generation, "every": registry.task}
            self._tell(registry.group, deal)

    def _greet(self, link: Link, message: Message) -> None:
        if message["kind"] not in ("hello", "status") or not same(message.get("token"), self._token):
            raise BrokenFrame("a first message without the job's token")
        link.proven = True
        link.inbox.trust()
        if message["kind"] == "status":
            link.send(status_of(self._folder, self._registry, self.journal, self._expected))
            self._forget(link)
            return
        self._terms.check(message)
        pid = count_in(message, "pid")
        if pid > MOST_PIDS:
            raise BrokenFrame(f"a process {pid}")
        link.member, link.pid = word_in(message, "member"), pid
        if message.get("host", self._host) != self._host:
            link.pid = 0  # a number of another host says nothing here
        link.place = place_in(message)
        self._strangers.discard(link)
        self._replace(link.member)
        if link.pid:
            self._peers.watch([link.pid])
        self._links[link.member] = link
        self._registry.hear(link.member)

    def _replace(self, member: str) -> None:
        """Count earlier processes in the same slot as dead: a launcher reuses a slot only after they ended."""
        slot, group = slot_of(member), self._registry.group
        if group is None or not 0 <= slot < self._expected:
            return
        for name in group.members:
            if name != member and slot_of(name) == slot and name not in self._links:
                self._registry.lose(name, dead=True)

    def _report(self, link: Link, message: Message) -> None:
        report = Report(
            link.member,
            count_in(message, "generation"),
            count_in(message, "committed"),
            bool(message["ready"]),
            names_in(message, "suspects"),
            bool(message["holds"]),
        )
        shards, silence = count_in({"shards": 0, **message}, "shards"), seconds_in(message, "silence")
        if self._registry.finished and not report.holds:
            link.send({"kind": "end"})
            return
        if self._registry.answer_to(report) is not None:
            link.send(self._announced())
            return
        known = self._registry.group
        stale = (link.member, report.generation)
        if known is not None and 0 < report.generation < known.generation and stale not in self._fenced:
            self._fenced.add(stale)  # a report is repeated until it is answered
            self._note(what="fenced", member=link.member, generation=report.generation)
        self._registry.arrive(report)
        if self._registry.finished and not self._registry.waiting[link.member].holds:
            link.send({"kind": "end"})  # it was evicted, and the others have made all steps meanwhile
        if known is not None and report.generation == known.generation:  # other members may still wait for it
            self._note_silent(known, report, silence)
            self.recoveries.left(known.generation, link.member, shards, self._clock())
            self._tell(known, {"kind": "lost", "member": link.member, "generation": known.generation})

    def _note_silent(self, group: Group, report: Report, silence: float) -> None:
        """Note the members that a report suspects, except those that are already known to have ended."""
        for name in report.suspects:
            link = self._links.get(name)
            if not silence or link is None or name not in group.members:
                continue
            if link.pid and self._peers.ended(link.pid):
                continue
            if not self.recoveries.knows(name, group.generation):
                seen = {"by": report.member, "silence": round(silence, 3)}
                self._note(what="silent", member=name, generation=group.generation, **seen)

    def _leave(self, link: Link, finished: bool, *, parting: bool) -> None:
        """Remove a member that has finished, or that leaves on request. Nobody waits for it."""
        group = self._registry.group
        if parting and group is not None:
            self._note(what="left", member=link.member, generation=group.generation)
        self._registry.finished = self._registry.finished or finished
        member = link.member
        self._forget(link)
        self._links.pop(member, None)
        self._registry.lose(member, dead=True)
        if self._registry.finished:
            (self._folder / FINISHED).touch()
            for name, report in self._registry.waiting.items():
                if not report.holds:
                    self._links[name].send({"kind": "end"})
        self.ended = not (self._links or self._registry.unseen)
        self.deserted = self.ended and parting and not self._registry.finished

    def _form(self) -> None:
        before = max((report.committed for report in self._registry.waiting.values() if report.holds), default=0)
        group = self._registry.form()
        if group is not None:
            self.recoveries.formed(group.generation, counts=group.steps > before, now=self._clock())
            links = {member: self._links.get(member) for member in group.members}
            self.journal.begin(group, {member: link.pid for member, link in links.items() if link and link.pid})
            fault("after the entry")
            self._asked = self._dealing = False
            about = {"members": list(group.members), "lengths": list(group.lengths), "steps": group.steps}
            self._note(what="generation", generation=group.generation, **about)
            self._tell(group, self._announced())
        elif self._registry.wants_change and not self._asked:
            self._asked = True
            assert self._registry.group is not None
            self._tell(self._registry.group, {"kind": "change", "generation": self._registry.group.generation})

    def _announced(self) -> Message:
        """Return the message about the current group, with the places where its members listen."""
        group = self._registry.group
        assert group is not None
        links = [self._links.get(member) for member in group.members]
        return {**message_of(group), "places": [link.place if link else None for link in links]}

    def _tell(self, group: Group, message: Message) -> None:
        for member in group.members:
            if member in self._links:
                self._links[member].send(message)

    def _note(self, **incident: Any) -> None:
        group, line = self._registry.group, {"at": time.time(), **incident}
        if group is not None and line.get("member") in group.members:
            line["rank"] = group.members.index(line["member"])
        self.recoveries.begin(self.journal.note(line), line, self._clock())

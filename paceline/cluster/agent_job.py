"""A job on several hosts. Each host has an agent, one poll loop handles all agents, and the first failure is raised.

    hello from every agent  ->  versions compared  ->  first host serves the store  ->  start on every host

No rank starts before every host has answered. The loop reads output and files, and sends a sign of life every second.
It ends the job when a rank fails, an agent is gone, or a host has been silent for too long.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.cluster.agent import BEAT, seat_to_dict
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.facts import Facts, differences, facts
from paceline.cluster.failure import failed, in_order
from paceline.cluster.job import MOMENT, PATIENCE
from paceline.cluster.output import Output
from paceline.cluster.supervised import SupervisedJob
from paceline.comm.frames import new_token
from paceline.elastic.launch import read_spec
from paceline.errors import PacelineError, WorkerFailed
from paceline.types import Seat

HELLO = 60.0  # seconds for an agent to answer
ENDING = 4.5  # seconds for agents to end their ranks

log = logging.getLogger(__name__)


class AgentJob(SupervisedJob):
    """The agents of a job, which run its ranks. `failures` lists the ranks that failed, the cause first."""

    def __init__(
        self,
        folder: Path,
        output: Output,
        links: Sequence[AgentLink],
        seats: Sequence[Seat],
        workers: int,
        *,
        silence: float,
        remedy: Callable[[AgentLink], str] = lambda link: "",
        patience: float = HELLO,
    ) -> None:
        super().__init__(folder, output)
        self._links, self._seats, self._workers = list(links), tuple(seats), workers
        self._silence, self._remedy, self._patience = silence, remedy, patience
        self._elastic = False  # whether the job goes on without a host
        self._missing: set[str] = set()  # hosts that it goes on without
        self._beaten = 0.0
        for seat in seats:
            output.open(seat.rank)

    @property
    def pids(self) -> dict[int, int]:
        """Return the pid of each rank on its host."""
        return {rank: pid for link in self._links for rank, pid in link.pids.items()}

    @property
    def facts(self) -> dict[str, Facts]:
        """Return the facts that each host has reported about itself."""
        return {link.host.name: link.facts for link in self._links if link.facts is not None}

    def begin(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Wait for all agents, compare their software, and start the ranks. Raises before any start if it differs."""
        with self._held():
            try:
                self._meet()
                self._start(argv, environ)
            except BaseException:
                self._end()
                raise

    def question(self, path: str) -> None:
        """Ask every host whether it sees a file and reaches the first host. Starts no rank."""
        with self._held():
            self._await(lambda link: link.facts is not None, self._patience)
            token = new_token()
            served = self._served(token)
            for link in self._links:
                link.send("question", path=path, token=token, address=served["address"], port=served["port"])
            self._await(lambda link: bool(link.answers), self._patience)

    def _served(self, token: str) -> dict[str, Any]:
        """Make the first host serve the store. Return its address and port."""
        first = self._links[0]
        first.send("serve", token=token, host=seat_to_dict(self._seats[0])["host"])
        self._await(lambda link: link is not first or link.serving is not None, self._patience)
        served = first.serving or {}
        if served.get("problem"):
            raise PacelineError(f"{first.host.name} cannot serve the job", why=str(served["problem"]))
        return served

    # the start ----------------------------------------------------------------------------------

    def _meet(self) -> None:
        self._await(lambda link: link.facts is not None, self._patience)
        here = facts()
        problems = [text for name, there in self.facts.items() for text in differences(name, here, there)]
        if problems:
            raise PacelineError(
                "the hosts do not run the same software",
                why="; ".join(problems),
                remedy="install the same versions, or name the interpreter of a host with python in --cluster FILE",
            )

    def _start(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        token = new_token()
        seats = [seat_to_dict(seat) for seat in self._seats]
        served = self._served(token)
        files = {path.name: path.read_text() for path in self.folder.glob("*.json") if path.is_file()}
        for link in self._links:
            link.send(
                "start",
                argv=list(argv),
                seats=seats,
                ranks=list(link.ranks),
                workers=self._workers,
                environ=dict(environ),
                files=files,
                token=token,
                store=f"tcp://{served['address']}:{served['port']}",
                address=served["address"],
                coordinator=served.get("coordinator", 0),
                port=0,
                silence=self._silence,
            )
        self._elastic = read_spec(self.folder) is not None
        if self._elastic:  # the coordinator is one more process of the first host
            self._output.open(self._workers)
            self._links[0].ranks = (*self._links[0].ranks, self._workers)

    def _await(self, ready: Callable[[AgentLink], bool], seconds: float) -> None:
        """Run the loop until every agent is ready. Raises one error that names all agents that are not."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and not all(ready(link) or link.lost for link in self._links):
            self._turn(0.1)
            if self._requests.received:
                raise self._stop_error() or WorkerFailed("the job was stopped before it started")
        for link in self._links:
            if not ready(link):
                link.lose(f"no answer within {seconds:g} s")
        problems = [link for link in self._links if link.lost]
        if problems:
            what = "; ".join(f"{link.host.name}: {_reason(link)}" for link in problems)
            names = " and ".join(link.host.name for link in problems)
            raise PacelineError(
                f"nothing was started, because {names} cannot be used",
                why=what,
                remedy=next((text for link in problems if (text := self._remedy(link))), ""),
            )

    # the run ------------------------------------------------------------------------------------

    def _watch(self) -> BaseException | None:
        while not all(link.ended or self._spared(link) for link in self._links):
            self._turn(BEAT)
            if self._requests.received:
                return self._stop_error()
            if self._output.problem:
                return self._output.problem
            if any(link.error or (link.lost and not self._spared(link)) for link in self._links):
                return self._cause()
        while self._output.waiting and not self._requests.received:
            self._turn(BEAT)
        return self._stop_error() if self._requests.received else None

    def _spared(self, link: AgentLink) -> bool:
        """Return whether an elastic job goes on without a lost host. The first host has its coordinator."""
        if not (self._elastic and link.lost) or link is self._links[0]:
            return False
        if link.host.name not in self._missing:
            self._missing.add(link.host.name)
            log.warning("%s is lost: %s; the job goes on without it", link.host.name, link.lost)
        return True

    def _cause(self) -> WorkerFailed:
        """Return the error for the cause. Wait for it briefly, because hosts that lost a peer may report first."""
        began = time.monotonic()
        while not self._requests.received:
            passed = time.monotonic() - began
            self.failures = in_order(failure for link in self._links for failure in link.failures)
            known = any(link.lost for link in self._links) or any(not one.consequence for one in self.failures)
            if passed > (MOMENT if known else PATIENCE + self._silence):
                break
            self._turn(0.05)
        lost = sorted((link for link in self._links if link.lost), key=lambda link: link.lost_at)
        if self.failures and not (lost and self.failures[0].consequence):
            return failed(self.failures[0], self.folder, self._workers)
        if lost:
            return self._lost(lost[0])
        return WorkerFailed(next((link.error for link in self._links if link.error), "a host ended the job"))

    def _lost(self, link: AgentLink) -> WorkerFailed:
        ranks = ", ".join(map(str, link.ranks))
        return WorkerFailed(
            f"{link.host.name} is lost",
            why=f"{link.lost}; it had rank{'s' if len(link.ranks) > 1 else ''} {ranks}",
            remedy=f"read {self.folder / f'rank-{link.ranks[0]}.log'}, and look at {link.host.name} and the network",
        )

    def _turn(self, seconds: float) -> None:
        """Wait for the next events and handle them."""
        ready = {fd for fd, _ in self._poll().poll(1000 * seconds)}
        for link in self._links:
            if link.errors in ready:
                link.read_errors()
            if link.source in ready:
                link.read(self.folder, self._output.put)
            if link.sink in ready:
                link.flush()
        self._show_life()
        self._output.pump()
        self._requests.clear()

    def _show_life(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= BEAT:
            self._beaten = now
            for link in self._links:
                if link.open:
                    link.send("beat")
        for link in self._links:
            if link.facts is not None and link.open and now - link.heard > self._silence:
                link.lose(f"nothing was heard of it for {self._silence:g} s")

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._requests.fd, select.POLLIN)
        for link in self._links:
            if link.source >= 0 and not self._output.full:
                poll.register(link.source, select.POLLIN)
            if link.errors >= 0:
                poll.register(link.errors, select.POLLIN)
            if link.waiting:
                poll.register(link.sink, select.POLLOUT)
        for fd in self._output.waiting:
            poll.register(fd, select.POLLOUT)
        return poll

    # the end ------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End all agents. Those that are lost, or take too long, end themselves when they miss this launcher."""
        try:
            before = len(self._requests.signals)
            for link in self._links:
                link.send("end")
            limit = time.monotonic() + ENDING
            while self._ending() and time.monotonic() < limit and len(self._requests.signals) <= before + 1:
                self._turn(0.05)
        finally:
            self._open = False
            for link in self._links:
                link.kill()
            self._output.close()
            self._requests.close()

    def _ending(self) -> list[AgentLink]:
        return [link for link in self._links if link.source >= 0 and not link.lost]


def _reason(link: AgentLink) -> str:
    return link.lost.removeprefix("its agent ended with exit code 255: ")

"""Faults at random times, from a seed, against a running elastic job of this host.

kill         SIGKILL to a member; the launcher starts it again
stop         SIGSTOP to a member, and SIGCONT after some seconds: it is evicted, fenced, and comes back
leave        SIGTERM to a member, which leaves after its step
join         one more worker
coordinator  SIGKILL to the coordinator; the launcher starts it again

At least one member is spared. A signal is sent only to a process whose parent is the launcher or this process.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("kill", "stop", "leave", "join", "coordinator")
WEIGHTS = {"kill": 5, "stop": 1, "leave": 1, "join": 3, "coordinator": 1}
FROZEN = 4.0  # seconds that a member is stopped; silence is noticed after about 2


@dataclass(frozen=True)
class Fault:
    kind: str
    at: float
    pid: int
    members: int


class Nemesis:
    """`join` starts a worker and returns its pid; `launcher` is the parent of the job's other processes."""

    def __init__(
        self,
        seed: int,
        *,
        launcher: int,
        join: Callable[[], int],
        kinds: Sequence[str] = KINDS,
        send: Callable[[int, int], None] = os.kill,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dice, self._kinds, self._join, self._send, self._clock = random.Random(seed), kinds, join, send, clock
        self._parents = {launcher, os.getpid()}
        self._frozen: dict[int, float] = {}
        self._asked: set[int] = set()  # members that were asked to leave
        self.faults: list[Fault] = []

    def pause(self, mean: float) -> float:
        """Return the seconds until the next fault."""
        return self._dice.expovariate(1 / mean)

    def thaw(self, *, now: float | None = None) -> None:
        """Let members go on that were stopped long enough, or all of them with now=inf."""
        now = self._clock() if now is None else now
        for pid in [pid for pid, due in self._frozen.items() if due <= now]:
            del self._frozen[pid]
            if self.is_ours(pid):
                self._send(pid, signal.SIGCONT)

    def strike(self, state: Mapping[str, Any]) -> Fault | None:
        """Inject one random fault into a job in this state. Return it, or None if it is not possible now."""
        kind = self._dice.choices(self._kinds, [WEIGHTS[kind] for kind in self._kinds])[0]
        pids = [pid for pid in map(pid_of, state["members"]) if pid not in self._frozen and pid not in self._asked]
        victim = self._dice.choice(pids) if pids else 0
        if kind == "join":
            return self._note(kind, self._join(), state) if len(state["members"]) < state["most"] else None
        if kind == "coordinator":
            return self._hit(kind, int(state["pid"]), signal.SIGKILL, state)
        if len(pids) < 2:
            return None
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}[kind]
        fault = self._hit(kind, victim, number, state)
        if fault is not None and kind == "stop":
            self._frozen[victim] = self._clock() + FROZEN
        elif fault is not None and kind == "leave":
            self._asked.add(victim)
        return fault

    def _hit(self, kind: str, pid: int, number: int, state: Mapping[str, Any]) -> Fault | None:
        if not self.is_ours(pid):
            return None
        self._send(pid, number)
        return self._note(kind, pid, state)

    def _note(self, kind: str, pid: int, state: Mapping[str, Any]) -> Fault:
        self.faults.append(Fault(kind, self._clock(), pid, len(state["members"])))
        return self.faults[-1]

    def is_ours(self, pid: int) -> bool:
        """Return whether a process was started by the job or by this process, and still runs."""
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            return False
        return int(words[1]) in self._parents and words[0] not in "ZX"


def pid_of(member: str) -> int:
    """Return the process of a member (presence.member_name)."""
    return int(member.split("-")[1])

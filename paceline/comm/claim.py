"""Allow one running process per rank. A process claims its rank before it connects; a second process is refused.

A script that is imported again (a DataLoader worker started by spawn, a subprocess) calls join() with the rank of the
process that started it. It must not take part. A rank may be claimed again, with the next turn number, after close()
or after its process has ended (`python first.py; python second.py` under one launcher).
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

from paceline.comm.rendezvous import TextStore
from paceline.comm.shm.memory import host_identity
from paceline.errors import WrongCommand

GUARD = (
    'put the training code under if __name__ == "__main__":, or start a program that is no part of the job without '
    "RANK, WORLD_SIZE and PACELINE_STORE in its environment"
)


class Process(NamedTuple):
    """A process of a host; its start time distinguishes it from a later process with the same pid."""

    host: str
    pid: int
    start: str

    def alive(self, here: str) -> bool:
        """Return whether it still runs. A process of another host cannot be checked and counts as running."""
        return self.host != here or start_time(self.pid) == self.start


def claim_turn(store: TextStore, rank: int) -> int:
    """Claim `rank` for this process. Return its turn: how often the rank was claimed and released before.

    Raises WrongCommand for a process with an ancestor in the job, or if another running process holds the rank.
    """
    here = host_identity()
    _refuse_descendants(store, here)
    me = Process(here, os.getpid(), start_time(os.getpid()))
    store.set(_joined(me), str(rank))
    text = " ".join((*map(str, me), secrets.token_hex(8)))
    for turn in count():
        held = store.claim(_name(rank, turn), text)
        if held == text:
            break
        holder = _parse(held)
        if holder != me and holder.alive(here):
            raise WrongCommand(
                f"process {me.pid} wants to join as rank {rank}",
                why=f"process {holder.pid} is rank {rank} of this job and still runs",
                remedy=GUARD,
            )
    return turn


def _refuse_descendants(store: TextStore, here: str) -> None:
    for ancestor in _ancestors(here):
        rank = store.look(_joined(ancestor))
        if rank is not None:
            raise WrongCommand(
                f"process {os.getpid()} wants to join",
                why=f"it was started by process {ancestor.pid}, which joined the same job as rank {rank}",
                remedy=GUARD,
            )


def _joined(process: Process) -> str:
    """Return the store's name for a process that has joined. Its children look it up."""
    return f"joined/{zlib.crc32(process.host.encode()):08x}/{process.pid}/{process.start}"


def _name(rank: int, turn: int) -> str:
    return f"process/{rank}/{turn}"


def _parse(text: str) -> Process:
    host, pid, start, _ = text.rsplit(" ", 3)
    return Process(host, int(pid), start)


def _ancestors(here: str) -> Iterator[Process]:
    pid = os.getppid()
    while pid > 0:
        words = _status(pid)
        if not words:
            return
        yield Process(here, pid, words[19])
        pid = int(words[1])


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process of this host, so that it cannot go on by itself."""
    words = _status(pid)
    return bool(words) and words[0] in "Tt"


def start_time(pid: int) -> str:
    """Return when a process started, in ticks since boot, or "" if it has ended."""
    words = _status(pid)
    return words[19] if words and words[0] not in "ZX" else ""


def _status(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, or [] if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []

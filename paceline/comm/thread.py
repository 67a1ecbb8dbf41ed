"""Ranks as threads of one process, for tests. The collectives are those of shm."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.comm.notes import NOTES
from paceline.comm.service import Attendant, Service
from paceline.comm.shm.lockstep import Lockstep
from paceline.comm.shm.mutex import Lock, held_already
from paceline.comm.shm.queue import LEFT, Word
from paceline.comm.shm.space import Branch, SharedSpace


class ThreadGroup:
    """State that the ranks of one group share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.moved = threading.Condition()
        self.counts = [[0] * size, [0] * size]
        self.notes: list[dict[int, bytes]] = [{} for _ in range(size)]
        self.excuses: list[str | None] = [None] * size
        self.table: list[Tensor | None] = [None] * size
        self.mutexes: dict[int, ThreadMutex] = {}
        self.branches: dict[int, ThreadGroup] = {}

    def branch(self, number: int) -> ThreadGroup:
        """Return the counters of branch `number`; all ranks get the same object."""
        made = ThreadGroup(self.size)
        made.moved, made.excuses = self.moved, self.excuses
        return self.branches.setdefault(number, made)


class ThreadMutex:
    """A lock of this process. It raises if a rank that holds it acquires it again."""

    def __init__(self) -> None:
        self._lock, self._holder = threading.Lock(), 0

    def acquire(self, seconds: float) -> bool:
        if self._holder == threading.get_ident():
            raise held_already()
        taken = self._lock.acquire(timeout=seconds)
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self) -> None:
        self._holder = 0
        self._lock.release()


class ConditionCounters:
    """Two counters per rank, protected by one condition variable."""

    def __init__(self, rank: int, group: ThreadGroup) -> None:
        self.rank, self._group, self.size = rank, group, group.size

    def value(self, kind: int, rank: int) -> int:
        return self._group.counts[kind][rank]

    def bump(self, kind: int) -> None:
        with self._group.moved:
            self._group.counts[kind][self.rank] += 1
            self._group.moved.notify_all()

    def sleep(self, words: Sequence[Word], seconds: float) -> None:
        with self._group.moved:
            counts = self._group.counts
            self._group.moved.wait_for(lambda: any(counts[kind][rank] != seen for kind, rank, seen in words), seconds)

    def check_process(self) -> None:
        """Do nothing: a forked child has its own memory and no threads."""

    def note(self, number: int, text: bytes) -> None:
        self._group.notes[self.rank][number % NOTES] = text

    def noted(self, rank: int, number: int) -> bytes:
        return self._group.notes[rank][number % NOTES]

    def name(self, rank: int) -> str:
        return f"rank {rank}"

    def why_lost(self, rank: int) -> str | None:
        return self._group.excuses[rank]

    def leave(self, why: str) -> None:
        with self._group.moved:
            self._group.excuses[self.rank] = LEFT if why == "left" else "failed"
            self._group.moved.notify_all()


class ThreadSpace(SharedSpace):
    """A shared space whose vectors all lie in one process."""

    def __init__(self, rank: int, group: ThreadGroup, deadline: float) -> None:
        self._group, self._branches = group, 0
        super().__init__(rank, group.size, ConditionCounters(rank, group), deadline)

    def map_all(self, nbytes: int, givers: int | None = None) -> Sequence[Tensor]:
        self._group.table[self.rank] = torch.zeros(nbytes, dtype=torch.uint8)
        return self._collect(range(givers or self.size))

    def map_one(self, nbytes: int) -> Tensor:
        if self.rank == 0:
            self._group.table[0] = torch.zeros(nbytes, dtype=torch.uint8)
        return self._collect(range(1))[0]

    def branch(self) -> Branch:
        self._branches += 1
        return Branch(self, ConditionCounters(self.rank, self._group.branch(self._branches)))

    def lock(self, line: Tensor, create: bool) -> Lock:
        """Return the lock for an address. Memory that is used again gets the same lock, which is released by then."""
        mutex = self._group.mutexes.setdefault(line.data_ptr(), ThreadMutex())
        return Lock(mutex, line, self.rank, self.counters, self.queue.deadline)

    def _collect(self, owners: range) -> list[Tensor]:
        self.barrier()
        views = [view for view in (self._group.table[owner] for owner in owners) if view is not None]
        self.barrier()
        return views


class ThreadComm(Lockstep):
    """One rank of a group of threads."""

    store: None = None  # threads meet in their group, without a store

    def __init__(self, rank: int, group: ThreadGroup, deadline: float = 60.0) -> None:
        super().__init__(ThreadSpace(rank, group, deadline), tuple(range(group.size)))


class ThreadJob:
    """The groups of workers and servers, all of which are threads of one process."""

    def __init__(self, workers: int, servers: int) -> None:
        self._size, self._servers = workers, servers
        self._workers, self._all = ThreadGroup(workers), ThreadGroup(workers + servers)
        self._crews = [ThreadGroup(1 + servers) for _ in range(workers)]

    def worker(self, rank: int) -> ThreadComm:
        comm = ThreadComm(rank, self._workers)
        if self._servers:
            everybody = ThreadComm(rank, self._all)
            comm.service = Service(everybody, self._servers, lambda: [ThreadComm(0, self._crews[rank])])
        return comm

    def attendant(self, rank: int) -> Attendant:
        place = rank - self._size + 1
        return Attendant(
            ThreadComm(rank, self._all), self._size, lambda: [ThreadComm(place, crew) for crew in self._crews]
        )


def run_ranks(
    size: int,
    work: Callable[[ThreadComm], Any],
    *,
    servers: int = 0,
    serve: Callable[[Attendant], Any] | None = None,
) -> list[Any]:
    """Run `work(comm)` on `size` threads and `serve(attendant)` on `servers` more. Return the results of all threads.

    Raises the first exception of a thread.
    """
    job = ThreadJob(size, servers)
    results: list[Any] = [None] * (size + servers)
    failures: list[BaseException] = []

    def body(rank: int) -> None:
        comm: Any = job.attendant(rank) if rank >= size else job.worker(rank)
        act: Any = work if rank < size else serve
        try:
            results[rank] = act(comm)
            comm.close()
        except BaseException as problem:
            failures.append(problem)
            comm.close("failed")

    threads = [threading.Thread(target=body, args=(rank,), name=f"rank {rank}") for rank in range(size + servers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results

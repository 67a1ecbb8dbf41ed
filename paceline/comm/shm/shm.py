"""Collectives of CPU tensors in shared memory, among ranks of one host.

Each rank owns one cache line of counters in a control segment, and sleeps on the counters of other ranks with a futex.
Segments are anonymous (memory.py). Bytes count as received when they are read from another rank's source or result.

    control   | fence  | posted, shared, pid, state, beats |  of rank 1  | ...     64 bytes each
              | number, device, inode, nbytes       |  of rank 1  | ...     the segment that a rank hands out
              | notes of the last 512 calls         |  of rank 1  | ...     120 bytes each, see comm/notes.py
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.comm.claim import is_stopped
from paceline.comm.notes import LENGTH as NOTE
from paceline.comm.notes import NOTES
from paceline.comm.peers import Peers
from paceline.comm.process import Home
from paceline.comm.rendezvous import TextStore
from paceline.comm.shm import futex, memory
from paceline.comm.shm.lockstep import Lockstep
from paceline.comm.shm.mutex import Lock, ProcessMutex
from paceline.comm.shm.queue import DEADLINE, LEFT, POSTED, SHARED, Word
from paceline.comm.shm.space import Branch, SharedSpace
from paceline.errors import PeerLost

LINE = 16  # words of 32 bits: one cache line
PHASE = 30  # the two highest bits of the beats: what this rank has declared (elastic/transports.py)
PID, STATE, BEATS = 2, 3, 4  # words after posted and shared
SPINS = 30  # reads of about 0.1 us each before going to sleep
_RUNNING, _LEFT, _FAILED = 1, 2, 3


class FutexCounters:
    """Two counters per rank in a control segment, and the notes of its last calls."""

    def __init__(
        self, rank: int, size: int, control: Tensor, notes: Tensor, whole: FutexCounters | None = None
    ) -> None:
        self.rank, self._control, self.size, self._whole = rank, control, size, whole
        self.names: tuple[int, ...] = tuple(range(size)) if whole is None else whole.names
        self._words: Any = (ctypes.c_uint32 * (control.numel() // 4)).from_address(control.data_ptr())
        self._notes: Any = memoryview(notes.numpy())  # type: ignore[arg-type]
        self._base = control.data_ptr()
        self._home, self._peers = Home(rank), Peers()
        self.check_process = self._home.check  # called for every gradient: no call in between
        self._line = (rank + 1) * LINE  # this rank's first word
        self._wakes = tuple(futex.waker(self._base + 4 * (self._line + kind)) for kind in (POSTED, SHARED))
        self._texts: Any = (ctypes.c_char * notes.numel()).from_address(notes.data_ptr())
        self._words[self._at(PID, rank)] = os.getpid()
        self._words[self._at(STATE, rank)] = _RUNNING

    @staticmethod
    def _at(kind: int, rank: int) -> int:
        return (rank + 1) * LINE + kind

    def value(self, kind: int, rank: int) -> int:
        seen: int = self._words[(rank + 1) * LINE + kind]
        if not futex.STRONG_MEMORY:
            futex.fence()
        return seen

    def bump(self, kind: int) -> None:
        word = self._line + kind
        if not futex.STRONG_MEMORY:
            futex.fence()
        self._words[word] = (self._words[word] + 1) & 0xFFFFFFFF
        self._wakes[kind]()

    def fenced(self) -> bool:
        """Return whether the group was ended with raise_fence. Then no step may be committed in it any more."""
        seen = bool(self._words[0])
        if not futex.STRONG_MEMORY:
            futex.fence()
        return seen

    def raise_fence(self) -> None:
        """End the group for all ranks and wake sleepers. The system calls make the write visible before later reads."""
        self._words[0] = 1
        futex.fence()
        for rank in range(self.size):
            for kind in (POSTED, SHARED):
                futex.wake(self._base + 4 * self._at(kind, rank))

    def beat(self) -> None:
        """Change this rank's heartbeat number, to show that it makes progress."""
        word = self._at(BEATS, self.rank)
        seen = self._words[word]
        self._words[word] = seen >> PHASE << PHASE | (seen + 1) & ((1 << PHASE) - 1)

    def declare(self, phase: int) -> None:
        """Tell the others what this rank does now that may take long; 0 stands for a step."""
        word = self._at(BEATS, self.rank)
        self._words[word] = self._words[word] & ((1 << PHASE) - 1) | phase << PHASE

    def phase(self, rank: int) -> int:
        return int(self._words[self._at(BEATS, rank)] >> PHASE)

    def stopped(self, rank: int) -> bool:
        """Return whether a signal has stopped the process of a rank."""
        return is_stopped(self.pid(rank))

    def beats(self, rank: int) -> int:
        """Return a rank's heartbeat number. It changes while the rank makes progress."""
        return int(self._words[self._at(BEATS, rank)])

    def note(self, number: int, text: bytes) -> None:
        start = (self.rank * NOTES + number % NOTES) * NOTE
        self._notes[start : start + NOTE] = text

    def noted(self, rank: int, number: int) -> bytes:
        start = (rank * NOTES + number % NOTES) * NOTE
        text: bytes = self._texts[start : start + NOTE]
        if not futex.STRONG_MEMORY:
            futex.fence()
        return text

    def sleep(self, words: Sequence[Word], seconds: float) -> None:
        kind, rank, seen = words[0]
        word = self._at(kind, rank)
        for _ in range(SPINS):
            if self._words[word] != seen:
                return
        futex.wait_any([(self._base + 4 * self._at(kind, rank), seen) for kind, rank, seen in words], seconds)

    def pid(self, rank: int) -> int:
        if self._whole is not None:
            return self._whole.pid(rank)
        return int(self._words[self._at(PID, rank)])

    def name(self, rank: int) -> str:
        return f"rank {self.names[rank]} (pid {self.pid(rank)})"

    def watch(self) -> None:
        """Open a pidfd on every process of the group. Called at a time when all of them are known to run."""
        self._peers.watch({self.pid(rank) for rank in range(self.size)})

    def why_lost(self, rank: int) -> str | None:
        if self._whole is not None:
            return self._whole.why_lost(rank)
        state = self._words[self._at(STATE, rank)]
        if state == _LEFT:
            return LEFT
        if state == _FAILED:
            return "failed"
        return "died" if state == _RUNNING and self._peers.ended(self.pid(rank)) else None

    def leave(self, why: str) -> None:
        """Mark this rank as gone. A forked child must not do so for its parent."""
        if not self._home.left:
            self._words[self._at(STATE, self.rank)] = _LEFT if why == "left" else _FAILED
            self._peers.close()


# watch(counters, late) is called while this rank waits for the ranks in `late`; it raises PeerLost to end the wait.
Watch = Callable[[FutexCounters, Sequence[int]], None]


class ShmSpace(SharedSpace):
    """A shared space of anonymous segments that every rank maps."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: TextStore,
        deadline: float,
        folder: Path | None,
        name: str,
        names: Sequence[int] = (),
        watch: Watch | None = None,
    ) -> None:
        self._folder = folder
        words, announced, notes = 4 * LINE * (size + 1), 4 * LINE * size, NOTE * NOTES * size
        control, number = self._open_control(rank, words + announced + notes, store, deadline, name)
        self._announced = control[words : words + announced].view(torch.int64).view(size, -1)
        self._futexes = FutexCounters(rank, size, control[:words], control[words + announced :][:notes])
        self._futexes.names = tuple(names) or tuple(range(size))
        super().__init__(rank, size, self._futexes, deadline)
        self.queue.watch = None if watch is None else lambda late: watch(self._futexes, late)
        try:
            self.barrier()
        finally:
            _close(number)
        self._futexes.watch()

    def _open_control(self, rank: int, nbytes: int, store: TextStore, deadline: float, name: str) -> tuple[Tensor, int]:
        if rank == 0:
            self._key = memory.new_key()
            number = memory.create(nbytes, self._key, self._folder)
            announced = " ".join(map(str, memory.announce(number)))
            store.set(f"{name}/control", f"{announced} {self._key.decode()}")
            return memory.attach(number, nbytes), number
        *numbers, key = store.get(f"{name}/control", deadline).split()
        self._key = key.encode()
        return memory.attach_from(memory.Segment(*map(int, numbers)), self._key, nbytes), -1

    def map_all(self, nbytes: int, givers: int | None = None) -> Sequence[Tensor]:
        return self._hand_out(nbytes, range(givers or self.size))

    def map_one(self, nbytes: int) -> Tensor:
        shared, self._private = self._hand_out(nbytes, range(1), twice=True)
        return shared

    def map_privately(self) -> Tensor | None:
        return self._private

    def branch(self) -> Branch:
        words, notes = 4 * LINE * (self.size + 1), NOTE * NOTES * self.size
        raw = self.map_one(words + notes)
        return Branch(self, FutexCounters(self.rank, self.size, raw[:words], raw[words:], self._futexes))

    def lock(self, line: Tensor, create: bool) -> Lock:
        mutex = ProcessMutex(line.data_ptr())
        if create:
            mutex.create()
        return Lock(mutex, line, self.rank, self._futexes, self.queue.deadline)

    def _hand_out(self, nbytes: int, owners: range, twice: bool = False) -> list[Tensor]:
        """Map one segment per owner. Every owner creates and announces its segment, and all ranks map all of them.

        With `twice`, every segment is also mapped privately (copy on write); these mappings follow the shared ones.
        """
        number, problem = -1, None
        try:
            number = memory.create(nbytes, self._key, self._folder) if self.rank in owners else -1
        except Exception as error:
            problem = error
        announced = (-2, 0, 0, 0) if problem else memory.announce(number)[1:] if number >= 0 else (-1, 0, 0, 0)
        try:
            self._announced[self.rank, :4] = torch.tensor(announced)
            self.barrier()
            table = self._announced[:, :4].tolist()
            self.barrier()
            if problem is not None:
                raise problem
            for owner in owners:
                if table[owner][0] == -2:
                    raise PeerLost(f"{self._futexes.name(owner)} could not get shared memory", rank=owner)
            kinds = (False, True) if twice else (False,)
            views = [self._attach(owner, table[owner], nbytes, private) for private in kinds for owner in owners]
            self.barrier()
            return views
        finally:
            _close(number)

    def _attach(self, owner: int, announced: Sequence[int], nbytes: int, private: bool) -> Tensor:
        if owner == self.rank:
            return memory.attach(announced[0], nbytes, private=private)
        segment = memory.Segment(self._futexes.pid(owner), *announced)
        return memory.attach_from(segment, self._key, nbytes, private=private)


def _close(number: int) -> None:
    """Close the descriptor of a segment, if there is one: all ranks have mapped it, or never will."""
    if number >= 0:
        os.close(number)


class ShmComm(Lockstep):
    """A comm among ranks of one host that share memory. Comms of one job need different names."""

    def __init__(
        self,
        rank: int,
        size: int,
        store: TextStore,
        deadline: float = DEADLINE,
        folder: Path | None = None,
        name: str = "shm",
        names: Sequence[int] = (),
        watch: Watch | None = None,
    ) -> None:
        """Create the comm. `names` are the ranks in the whole job, for messages. `watch` may raise to end a wait."""
        super().__init__(ShmSpace(rank, size, store, deadline, folder, name, names, watch), tuple(range(size)))

    @property
    def counters(self) -> FutexCounters:
        """Return the counters of all ranks, which also hold the fence of the group."""
        counters = self._space.counters
        assert isinstance(counters, FutexCounters)
        return counters

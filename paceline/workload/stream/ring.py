"""Batches through shared memory: a producer process fills slots, the worker uses them in place.

    producer                                     worker
    slot 0 | slot 1 | slot 2 | slot 3            memory that both share, without a name
       "slot 1 is ready"       ---- socket ---->   tensors that view slot 1
       "slot 1 is free"        <--- socket -----   when the last of these tensors is gone

The first message carries the memory (a file descriptor) and the layout of all batches. The worker maps the memory only
if it has the size that this layout needs and is sealed against resizing: reading beyond its end would kill the worker.
When one side closes the socket, the other side ends, so neither outlives the other.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from struct import Struct
from typing import IO, Any

from paceline.errors import WorkloadError
from paceline.workload.stream import layout

PRODUCER = "paceline.train.producer"
_SLOT = Struct("<cI")
_ALIGNED = 64
_LONGEST = layout.LONGEST + 64


def offsets_of(fields: Iterable[layout.Field]) -> list[int]:
    """Return where each tensor begins in a slot, and the size of the slot."""
    return [0, *accumulate(-(-field.nbytes // _ALIGNED) * _ALIGNED for field in fields)]


def fill(line: socket.socket, batches: Iterator[Any], slots: int, what: str) -> None:
    """Fill slots with batches until the worker is gone. Runs in the producer."""
    first = layout.describe(next(batches), what)
    fields = layout.fields_of(first)
    offsets = offsets_of(fields)
    memory = _reserved(offsets[-1] * slots, what)
    space = mmap.mmap(memory, 0)
    socket.send_fds(line, [b"L" + layout.write(fields)], [memory])
    os.close(memory)
    free = list(range(slots))
    for batch in chain([first], (layout.describe(batch, what) for batch in batches)):
        if layout.fields_of(batch) != fields:
            raise WorkloadError(what, why="its batches differ in dtype or shape", remedy="batches of one shape")
        while not free or _waiting(line):
            message = line.recv(_SLOT.size)
            if not message:
                return
            free.append(_SLOT.unpack(message)[1])
        slot = free.pop(0)
        for tensor, start in zip(batch, offsets, strict=False):
            _copy(tensor, space, slot * offsets[-1] + start)
        line.send(_SLOT.pack(b"R", slot))


def _reserved(nbytes: int, what: str) -> int:
    """Return the descriptor of a sealed memory. Raises if there is too little memory for it."""
    from paceline.comm.shm.memory import seal

    memory = os.memfd_create("paceline-queue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(memory, 0, max(1, nbytes))
    except OSError as problem:
        os.close(memory)
        raise WorkloadError(
            what,
            why=f"shared memory of {nbytes / 1e6:.0f} MB: {os.strerror(problem.errno or 0)}",
            remedy="fewer slots, or smaller batches",
        ) from None
    seal(memory)
    return memory


def _waiting(line: socket.socket) -> bool:
    import select

    return bool(select.select([line], [], [], 0)[0])


def _copy(tensor: Any, space: mmap.mmap, start: int) -> None:
    import torch

    if tensor.nbytes:
        target = torch.frombuffer(space, dtype=torch.uint8, count=tensor.nbytes, offset=start)
        target.copy_(tensor.reshape(-1).view(torch.uint8))


class Ring:
    """The worker's side of one producer."""

    def __init__(self, what: str, spec: Mapping[str, Any], timeout: float) -> None:
        self._what, self._slots = what, int(spec["slots"])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line = ours
        self._line.settimeout(timeout)
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 close() closes it
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", PRODUCER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=self._log,
            )
        self._line.send(json.dumps(spec).encode())
        self._fields: tuple[layout.Field, ...] = ()
        self._space: mmap.mmap | None = None

    def take(self) -> tuple[Any, ...]:
        """Return the next batch. Its tensors are views of the slot, which becomes free when they are deleted."""
        if self._space is None:
            self._open(self._receive())
        message = self._receive()
        if message[:1] != b"R" or len(message) != _SLOT.size:
            raise self._failure(f"it sent a message of kind {message[:1]!r}")
        return self._tensors(_SLOT.unpack(message)[1])

    def close(self) -> None:
        self._line.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _open(self, message: bytes) -> None:
        if message[:1] != b"L" or self._memory is None:
            raise self._failure(f"it sent a message of kind {message[:1]!r}")
        try:
            self._fields = layout.read(message[1:])
        except ValueError as problem:
            raise self._failure(f"it sent {problem}") from None
        self._offsets = offsets_of(self._fields)
        try:
            self._check_size(self._memory, max(1, self._offsets[-1] * self._slots))
            self._space = mmap.mmap(self._memory, 0)
        finally:
            os.close(self._memory)

    def _check_size(self, memory: int, needed: int) -> None:
        size = os.fstat(memory).st_size
        if size != needed:
            raise self._failure(f"its memory has {size:,} bytes, and its layout needs {needed:,}")
        try:
            sealed = fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        except OSError:
            sealed = 0
        if not sealed:
            raise self._failure("its memory could be cut while it is read")

    _memory: int | None = None

    def _receive(self) -> bytes:
        try:
            message, numbers, _, _ = socket.recv_fds(self._line, _LONGEST, 1)
        except TimeoutError:
            raise WorkloadError(
                self._what,
                why=f"no batch came for {self._line.gettimeout():g} s",
                remedy="batches that are kept hold their slots: slots=8, or copy what you keep; timeout=600",
            ) from None
        except OSError:
            message, numbers = b"", []
        if numbers:
            self._memory = numbers[0]
        if not message:
            raise self._failure(self._ended())
        if message[:1] == b"E":
            raise self._failure(message[1:].decode(errors="replace"))
        return message

    def _ended(self) -> str:
        """Return how the producer ended, with its last line of output."""
        try:
            code = self._process.wait(10)
        except subprocess.TimeoutExpired:
            return "it closed its side"
        size = os.fstat(self._log.fileno()).st_size
        lines = os.pread(self._log.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").strip().splitlines()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended with {how}" + (f": {lines[-1]}" if lines else "")

    def _failure(self, why: str) -> WorkloadError:
        return WorkloadError(f"the producer of {self._what} (pid {self._process.pid})", why=why)

    def _tensors(self, slot: int) -> tuple[Any, ...]:
        import numpy
        import torch

        assert self._space is not None
        size = self._offsets[-1]
        if (slot + 1) * size > len(self._space):
            raise self._failure(f"it named slot {slot}, which is outside of its memory")
        array = numpy.frombuffer(self._space, numpy.uint8, size, slot * size)
        weakref.finalize(array, _give_back, self._line, slot, os.getpid()).atexit = False
        base = torch.from_numpy(array)
        return tuple(
            layout.tensor_of(base[start : start + field.nbytes], field)
            for field, start in zip(self._fields, self._offsets, strict=False)
        )


def _give_back(line: socket.socket, slot: int, owner: int) -> None:
    """Tell the producer that a slot is free. A forked child must not: its parent may still use the batch."""
    if os.getpid() != owner:
        return
    try:
        line.send(_SLOT.pack(b"F", slot))
    except OSError:
        pass  # the producer is gone, or this side is closed

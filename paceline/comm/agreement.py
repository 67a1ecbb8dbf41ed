"""Compare the calls that ranks are about to make over torch.distributed.

gloo matches collectives only by their number in the sequence of calls. If ranks make different calls, the result is
a wrong sum, a hang, or a crash in native code. So every call of a user, and every training step, is first announced
as a note of fixed length in a separate process group (see notes.py). The note of a step travels during backward.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.comm.notes import LENGTH, mismatch
from paceline.comm.torch.groupboard import first_line
from paceline.comm.transport import Work
from paceline.errors import PeerLost


class Agreement:
    """Gathers the notes of all members of a comm in a separate process group. Creating it is collective."""

    def __init__(self, rank: int, members: Sequence[int], deadline: float) -> None:
        self.rank, self._size, self._number = rank, len(members), 0
        limit = timedelta(seconds=deadline)
        self._group = dist.new_group(list(members), timeout=limit, backend="gloo", use_local_synchronization=True)

    def start(self, text: bytes) -> CallComparison:
        """Announce a call; wait() on the result raises CallMismatch if another rank announced a different one."""
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        notes = list(torch.zeros(self._size, LENGTH, dtype=torch.uint8).unbind())
        work = dist.all_gather(notes, mine, group=self._group, async_op=True)
        number, self._number = self._number, self._number + 1
        return CallComparison(work, notes, self.rank, number, text)


class CallComparison(Work):
    """The notes of one call while they are being gathered. wait() compares them."""

    def __init__(self, work: Any, notes: Sequence[Tensor], rank: int, number: int, text: bytes) -> None:
        self._work, self._notes, self._rank, self._number, self._mine = work, notes, rank, number, text

    def wait(self, deadline: float | None = None) -> None:
        if self._work is None:
            return
        try:
            self._work.wait(*(() if deadline is None else (timedelta(seconds=deadline),)))
        except RuntimeError as problem:
            what = self._mine.decode(errors="replace").rstrip(", ")
            raise PeerLost(f"a rank stopped answering rank {self._rank} in {what}", why=first_line(problem)) from None
        self._work = None
        self._compare()

    def _compare(self) -> None:
        for peer, note in enumerate(self._notes):
            text = bytes(note.tolist())
            if text != self._mine:
                raise mismatch(self._number, (f"rank {self._rank}", self._mine), (f"rank {peer}", text), peer)

    def done(self) -> bool:
        return self._work is None or bool(self._work.is_completed())


class CallFile:
    """A file with the current call of this process. The launcher reads it if the process crashes in native code."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises FileExistsError if a file of this name exists, and leaves that file unchanged."""
        self._path = path
        number = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(number, LENGTH + 1)
            self._map = mmap.mmap(number, LENGTH + 1)
        finally:
            os.close(number)
        self.write(b" " * LENGTH)

    def write(self, text: bytes) -> None:
        self._map[:] = text + b"\n"

    def close(self, failed: bool) -> None:
        """Close the file. Delete it unless this rank failed; after a failure the launcher reads it."""
        self._map.close()
        if not failed:
            self._path.unlink(missing_ok=True)

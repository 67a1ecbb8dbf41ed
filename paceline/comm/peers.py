"""Check whether other processes of this host still run, through pidfds instead of pids.

The kernel may reuse a pid once its process is reaped; a pidfd keeps referring to the process it was opened for.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable

from paceline.comm.claim import start_time


class Peers:
    """Handles on processes that were alive when `watch` was called."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}
        self._starts: dict[int, str] = {}  # used where the kernel has no pidfd, or the process has no descriptors left

    def watch(self, pids: Iterable[int]) -> None:
        for pid in set(pids) - {os.getpid(), *self._handles}:
            self._starts[pid] = start_time(pid)
            try:
                self._handles[pid] = os.pidfd_open(pid)
            except OSError as problem:
                if problem.errno == errno.ESRCH:
                    self._starts[pid] = ""

    def ended(self, pid: int) -> bool:
        """Return whether a process has ended, even if its parent has not reaped it yet."""
        if pid == os.getpid():
            return False
        if pid in self._handles:
            looked = select.poll()
            looked.register(self._handles[pid], select.POLLIN)
            return bool(looked.poll(0))
        start = start_time(pid)
        return not start or start != self._starts.get(pid, start)

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

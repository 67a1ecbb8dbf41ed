"""Detect forked children. They inherit the comm of their parent and must not use it."""

from __future__ import annotations

import ctypes
import os

from paceline.errors import WrongCommand


class Home:
    """Remembers the process that joined the job."""

    def __init__(self, rank: int) -> None:
        self._rank, self._pid = rank, os.getpid()

    @property
    def left(self) -> bool:
        """Return whether this process is a forked child of the one that joined."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise WrongCommand in a forked child. Called before anything is written or sent."""
        if os.getpid() != self._pid:
            raise WrongCommand(
                f"a collective in process {os.getpid()}",
                why=f"it was forked from process {self._pid}, which is rank {self._rank} and uses the same memory",
                remedy="train in the process that called join()",
            )


def keep_groups_in_children() -> None:
    """Make sure that a forked child never destroys the process groups of torch that it inherits from its parent.

    Their destructor would wait for threads that exist only in the parent, and the child would never end.
    """
    global _registered
    if not _registered:
        os.register_at_fork(after_in_child=_keep_groups)
        _registered = True


_registered = False


def _keep_groups() -> None:
    from torch.distributed import distributed_c10d

    for group, (_, store) in distributed_c10d._world.pg_map.items():
        for kept in (group, store):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

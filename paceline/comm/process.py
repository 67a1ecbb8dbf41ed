"""Detect forked children. They inherit the comm of their parent and must not use it."""

from __future__ import annotations

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

"""Decide which processes of an elastic job are started again after a signal has ended them."""

from __future__ import annotations

from paceline.errors import WrongCommand

DEFAULT = "16"


class Restarts:
    """A policy: always, never, or at most N restarts in all. Ranks in `always` are restarted under every policy."""

    def __init__(self, policy: str, always: frozenset[int] = frozenset()) -> None:
        if policy not in ("always", "never") and not policy.isdecimal():
            raise WrongCommand(
                f"--restart {policy}", why="it is always, never or a number of restarts", remedy="--restart 3"
            )
        self.always = always
        self._left = None if policy == "always" else 0 if policy == "never" else int(policy)

    def allows(self, rank: int) -> bool:
        """Return whether a worker that died may be restarted, and count the restart."""
        if rank in self.always or self._left is None:
            return True
        self._left -= 1
        return self._left >= 0

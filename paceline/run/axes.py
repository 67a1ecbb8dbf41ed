"""Axes: the members of a run, one for each axis. Composed: the result of checking a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.protocols import Compressor, Costed, Membership, Rule, Schedule, Topology
from paceline.run.run import Run


@dataclass(frozen=True)
class Axes:
    """The members that a run names. `topology` is the topology of its exchange, or None."""

    rule: Rule
    exchange: Costed
    schedule: Schedule
    compressor: Compressor
    membership: Membership
    topology: Topology | None = None

    @property
    def same_result(self) -> bool:
        """Return whether training gives the result of all-reduce, up to rounding."""
        return self.rule.same_result and self.exchange.consensus and self.compressor.loss != "lossy"


@dataclass(frozen=True)
class Composed:
    """A run that passed all checks, with its members and the notes about them; a reference has no members.

    Code that carries a run out gets this value, so that a run is checked once.
    """

    run: Run
    axes: Axes | None
    notes: tuple[str, ...] = field(default=())

    @property
    def servers(self) -> int:
        """Return the number of processes that the run needs beside its workers."""
        return 0 if self.axes is None else self.axes.exchange.servers

"""Common parts of rules that average parameters: how often, over neighbors and over all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.strategy.rules._context import Carrier, Context
from paceline.strategy.rules._local_updates import LocalDuty, check_every
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane

PARAMETERS = Lane("parameters", needs_consensus=False, lossy_ok=False, stale_ok=True, half="mixed")
EVERYBODY = Lane("parameters of all", needs_consensus=False, lossy_ok=False, half="mixed")


@dataclass(frozen=True)
class Averaging(RuleTraits):
    """
    every          steps between averagings over the exchange
    global_every   steps between additional means over all ranks; 0 means never
    """

    every: int = 1
    global_every: int = 0

    lanes: ClassVar[tuple[Lane, ...]] = (PARAMETERS,)
    needs: ClassVar[str] = "doubly stochastic"

    @property
    def intervals(self) -> tuple[int, ...]:
        return (self.every, self.global_every) if self.global_every else (self.every,)

    def __post_init__(self) -> None:
        check_every(self, self.every)
        check_every(self, self.global_every, least=0)


class AveragingDuty(LocalDuty):
    """Local updates, with an average of the parameters every few updates."""

    def __init__(self, context: Context, rule: Averaging) -> None:
        super().__init__(context)
        self._every, self._global_every = rule.every, rule.global_every
        self._lane = self.carry(PARAMETERS)
        self._all = AllLane(context) if rule.global_every else None

    def send(self) -> None:
        """Send the parameters, if they are due in this step."""
        if (self.steps + 1) % self._every == 0:
            self._lane.send(self.steps // self._every, self.values())

    def wait(self) -> None:
        self._lane.wait()

    def take(self) -> None:
        if self._lane.sent:
            self.adopt(self._lane.take())

    def count(self) -> None:
        """Count a finished step; average over all ranks if that is due."""
        self.steps += 1
        if self._all is not None and self.steps % self._global_every == 0:
            self.adopt(self._all.mean(self.steps, self.values()))


class AllLane:
    """An additional mean over all ranks, beside a neighbor exchange."""

    def __init__(self, context: Context) -> None:
        from paceline.strategy.exchanges.allreduce import AllReduce

        self._lane = Carrier(context, EVERYBODY, AllReduce())

    def mean(self, number: int, tensors):  # type: ignore[no-untyped-def]
        self._lane.send(number, tensors)
        self._lane.wait()
        return self._lane.take()

"""DiLoCo: many local steps, then one outer Nesterov step on the averaged parameter difference.

    every H steps:   delta = anchor - mean_i(x[i]);   anchor <- Nesterov(anchor, delta);   x[i] <- anchor

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import BadMember
from paceline.strategy.rules._context import Context
from paceline.strategy.rules._local_updates import LocalDuty, check_every
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor

AGREED = Lane("parameters", needs_consensus=True, lossy_ok=False, half="float32")


@dataclass(frozen=True)
class Diloco(RuleTraits):
    every: int = 50
    lr: float = 0.7
    momentum: float = 0.9

    name: ClassVar[str] = "diloco"
    lanes: ClassVar[tuple[Lane, ...]] = (AGREED,)
    leaves: ClassVar[str] = "update"

    @property
    def intervals(self) -> tuple[int, ...]:
        return (self.every,)

    def __post_init__(self) -> None:
        check_every(self, self.every)
        if not self.lr > 0:
            raise BadMember(f"{self}", why="the outer learning rate is above 0")
        if not 0 <= self.momentum < 1:
            raise BadMember(f"{self}", why="the outer momentum lies in [0, 1)")

    def bind(self, context: Context) -> DilocoDuty:
        return DilocoDuty(context, self)


class DilocoDuty(LocalDuty):
    """`anchor` is where all ranks last agreed; before the first step it is not known."""

    def __init__(self, context: Context, rule: Diloco) -> None:
        super().__init__(context)
        self._every = rule.every
        self._lane = self.carry(AGREED)
        self._anchor = [self._torch.nn.Parameter(self._lane.widened(value)) for value in self.values()]
        self._anchored = False
        nesterov = rule.momentum > 0
        self._outer = self._torch.optim.SGD(self._anchor, lr=rule.lr, momentum=rule.momentum, nesterov=nesterov)

    def leave(self) -> None:
        if not self._anchored:
            self._drop_anchor(self.values())
        self.local_update()
        if (self.steps + 1) % self._every == 0:
            self._lane.send(self.steps, self.values())

    def _drop_anchor(self, values: Sequence[Tensor]) -> None:
        with self._torch.no_grad():
            for anchor, value in zip(self._anchor, values, strict=True):
                anchor.copy_(value)
        self._anchored = True

    def wait(self) -> None:
        self._lane.wait()

    def update(self) -> None:
        self.steps += 1
        if not self._lane.sent:
            return
        with self._torch.no_grad():
            for parameter, anchor, mean in zip(self.parameters, self._anchor, self._lane.take(), strict=True):
                anchor.grad = anchor - mean if parameter.requires_grad else None
                if anchor.grad is None:  # a frozen layer makes no outer step, ranks agree on it all the same
                    anchor.copy_(mean)
        self._outer.step()
        self.adopt([anchor.detach() for anchor in self._anchor])

    def state(self) -> Mapping[str, Any]:
        anchor = [value.detach().clone() for value in self._anchor] if self._anchored else []
        return {"steps": self.steps, "anchor": anchor, "outer": self._outer.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps, self._anchored = state["steps"], False
        self._outer.load_state_dict(state["outer"])
        if state["anchor"]:
            self._drop_anchor(state["anchor"])

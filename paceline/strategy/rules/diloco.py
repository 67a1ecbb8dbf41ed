"""DiLoCo: many local steps, then an outer step on the mean of the parameter differences, as a whole or in fragments.

    outer gradient at step s of a fragment p:     delta_i = anchor[p] - x_i[p], which leaves
    delay steps later, with its mean over ranks:  anchor[p] <- outer optimizer(anchor[p], mean_i delta_i)
                                                  x_i[p]    <- (1 - mixing) x_i[p] + mixing anchor[p]

Every fragment leaves every H steps. Fragment k of K leaves first after (k + 1) H / K steps, so that fragments leave one
at a time. With one fragment, no delay and mixing 1, this is DiLoCo as first published.

A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023.
A. Douillard et al., "Streaming DiLoCo with overlapping communication", 2025.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.errors import BadMember, WorkloadError
from paceline.menu.grammar import parse
from paceline.strategy.rules._context import Carrier, Context
from paceline.strategy.rules._local_updates import LocalDuty, check_every
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor

OUTER = Lane("outer gradients", needs_consensus=True, lossy_ok=True, half="float32")
LR, MOMENTUM = 0.7, 0.9


@dataclass(frozen=True)
class Diloco(RuleTraits):
    """
    every          steps between two exchanges of a fragment
    lr, momentum   of the outer Nesterov step
    fragments      number of parts of the model; each is exchanged at a different step
    delay          steps of training that an exchange may take
    mixing         share of the outer result in the parameters; the rest is this rank's own parameters
    outer          another outer optimizer of torch.optim: outer=adamw(lr=0.01)
    """

    every: int = 50
    lr: float = LR
    momentum: float = MOMENTUM
    fragments: int = 1
    delay: int = 0
    mixing: float = 1.0
    outer: str = ""

    name: ClassVar[str] = "diloco"
    lanes: ClassVar[tuple[Lane, ...]] = (OUTER,)
    leaves: ClassVar[str] = "update"

    @property
    def intervals(self) -> tuple[int, ...]:
        return (self.every,)

    @property
    def streams(self) -> bool:
        return self.fragments > 1 or self.delay > 0

    @property
    def own_optimizer(self) -> str:
        return self.outer

    def __post_init__(self) -> None:
        check_every(self, self.every)
        if not self.lr > 0:
            raise BadMember(f"{self}", why="the outer learning rate is above 0")
        if not 0 <= self.momentum < 1:
            raise BadMember(f"{self}", why="the outer momentum lies in [0, 1)")
        if not 1 <= self.fragments <= self.every:
            why = f"each fragment leaves at a step of its own, so there are 1 to every={self.every} of them"
            raise BadMember(f"{self}", why=why)
        if not 0 <= self.delay < self.every:
            why = f"a fragment is back before it leaves again, so delay lies in 0 to {self.every - 1}"
            raise BadMember(f"{self}", why=why)
        if not 0 < self.mixing <= 1:
            raise BadMember(f"{self}", why="mixing is the share of the outer result, above 0 and at most 1")
        if self.outer and (self.lr, self.momentum) != (LR, MOMENTUM):
            raise BadMember(f"{self}", why=f"lr and momentum belong to {parse(self.outer).word}: write them inside")

    def bind(self, context: Context) -> DilocoDuty:
        return DilocoDuty(context, self)


def cut(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Cut tensors of these sizes into `count` runs of nearly equal size, each with one tensor at least."""
    parts: list[list[int]] = [[]]
    done = 0
    for position, size in enumerate(sizes):
        parts[-1].append(position)
        done += size
        lacking, left = count - len(parts), len(sizes) - position - 1
        if lacking and (done * count >= sum(sizes) * len(parts) or left == lacking):
            parts.append([])
    return parts


@dataclass
class Fragment:
    """A part of the model. `due` is the step in which its exchange is applied, `mean` a result from a checkpoint."""

    positions: Sequence[int]
    turn: int
    lane: Carrier
    due: int | None = None
    mean: list[Tensor] = field(default_factory=list)

    def take(self) -> list[Tensor]:
        """Return the mean outer gradient, and mark the fragment as not under way."""
        mean = self.mean or self.lane.take()
        self.due, self.mean = None, []
        return mean


class DilocoDuty(LocalDuty):
    """The duty. `anchor` holds the parameters that all ranks last agreed on; it is empty before the first step."""

    def __init__(self, context: Context, rule: Diloco) -> None:
        super().__init__(context)
        self._rule = rule
        _check_tensors(rule, len(self.parameters))
        self._fragments = [
            Fragment(part, (k + 1) * rule.every // rule.fragments % rule.every, self.carry(OUTER, positions=part))
            for k, part in enumerate(cut([p.numel() for p in self.parameters], rule.fragments))
        ]
        widened = self._fragments[0].lane.widened
        self._anchor = [self._torch.nn.Parameter(widened(value)) for value in self.values()]
        self._anchored = False
        self.outer = self._make_outer()
        if rule.delay:
            context.on_forward(self.advance)

    def _make_outer(self) -> Any:
        rule = self._rule
        if rule.outer:
            return self.context.make_optimizer(rule.outer, self._anchor)
        nesterov = rule.momentum > 0
        return self._torch.optim.SGD(self._anchor, lr=rule.lr, momentum=rule.momentum, nesterov=nesterov)

    def leave(self) -> None:
        if not self._anchored:
            self._drop_anchor(self.values())
        self.local_update()
        for fragment in self._fragments:
            if (self.steps + 1) % self._rule.every == fragment.turn:
                self._send(fragment)

    def _send(self, fragment: Fragment) -> None:
        with self._torch.no_grad():
            moved = [self._anchor[k] - self.parameters[k] for k in fragment.positions]
        fragment.lane.send(self.steps, moved)
        fragment.due = self.steps + self._rule.delay

    def _drop_anchor(self, values: Sequence[Tensor]) -> None:
        with self._torch.no_grad():
            for anchor, value in zip(self._anchor, values, strict=True):
                anchor.copy_(value)
        self._anchored = True

    def _due(self) -> list[Fragment]:
        return [fragment for fragment in self._fragments if fragment.due == self.steps]

    def wait(self) -> None:
        for fragment in self._due():
            fragment.lane.wait()

    def update(self) -> None:
        for fragment in self._due():
            self._step_outside(fragment.positions, fragment.take())
        self.steps += 1

    def _step_outside(self, positions: Sequence[int], means: Sequence[Tensor]) -> None:
        """Make an outer step on the anchors of a fragment. All other anchors have no gradient and do not change."""
        with self._torch.no_grad():
            for k, mean in zip(positions, means, strict=True):
                if self.parameters[k].requires_grad:
                    self._anchor[k].grad = mean.clone()  # the result may be in memory that ranks share
                else:  # a frozen layer makes no outer step, but ranks still agree on it
                    self._anchor[k].sub_(mean)
        self.outer.step()
        with self._torch.no_grad():
            for k in positions:
                self._anchor[k].grad = None
                self._adopt(self.parameters[k], self._anchor[k])

    def _adopt(self, parameter: Tensor, anchor: Tensor) -> None:
        mixing = self._rule.mixing
        parameter.copy_(anchor if mixing == 1 else parameter.to(anchor.dtype).lerp(anchor, mixing))

    def discard(self) -> None:
        super().discard()
        for fragment in self._fragments:
            fragment.due, fragment.mean = None, []

    def state(self) -> Mapping[str, Any]:
        """Wait for fragments that are under way, and keep their means: they are applied when they are due."""
        anchor = [value.detach().clone() for value in self._anchor] if self._anchored else []
        under_way = [self._arrived(k) for k, fragment in enumerate(self._fragments) if fragment.due is not None]
        return {"steps": self.steps, "anchor": anchor, "outer": self.outer.state_dict(), "under_way": under_way}

    def _arrived(self, number: int) -> dict[str, Any]:
        fragment = self._fragments[number]
        if not fragment.mean:
            fragment.lane.wait()
            fragment.mean = [mean.clone() for mean in fragment.lane.take()]
        return {"fragment": number, "due": fragment.due, "mean": [mean.clone() for mean in fragment.mean]}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps, self._anchored = state["steps"], False
        self.outer.load_state_dict(state["outer"])
        if state["anchor"]:
            self._drop_anchor(state["anchor"])
        for saved in state.get("under_way", ()):
            fragment = self._fragments[saved["fragment"]]
            fragment.due, fragment.mean = saved["due"], list(saved["mean"])


def _check_tensors(rule: Diloco, count: int) -> None:
    if rule.fragments > count:
        raise WorkloadError(
            f"{rule} of a model with {count} tensors to train",
            why="a fragment is made of whole tensors, at least one",
            remedy=f"fragments={count}, or fewer",
        )

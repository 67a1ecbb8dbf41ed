"""What rules with local updates share: the optimizer runs on this rank's own gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import WrongCommand
from paceline.rules.context import Carrier, Context
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor


class LocalDuty:
    """A duty that does nothing among ranks yet; rules add what leaves and what comes back."""

    averages_gradients = False

    def __init__(self, context: Context) -> None:
        import torch

        self._torch = torch
        self.context, self.parameters = context, list(context.parameters)
        self._carriers: list[Carrier] = []
        self.steps = 0

    def carry(self, lane: Lane, exchange: Any = None) -> Carrier:
        """Open a lane of this rule."""
        carrier = Carrier(self.context, lane, exchange)
        self._carriers.append(carrier)
        return carrier

    def discard(self) -> None:
        """Forget what has left for the step that was about to begin."""
        for carrier in self._carriers:
            carrier.drop()

    def finish(self) -> None:
        """A step is over when its update is."""

    def close(self) -> None:
        """Nothing is held."""

    def begin(self) -> None:
        """A step begins: forward is about to run."""

    def on_grad(self, parameter: Tensor) -> None:
        """The gradient stays where it is; what is under way may go on meanwhile."""
        self.context.comm.progress()

    def leave(self) -> None:
        """Backward is over."""

    def wait(self) -> None:
        """Until what must be back is back."""

    def sound(self) -> bool:
        return True

    def update(self) -> None:
        raise NotImplementedError

    def synchronize(self) -> None:
        """Gradients are this rank's own; there is nothing to wait for."""

    def update_with(self, closure: Callable[[], Tensor]) -> None:
        raise WrongCommand(
            "step(closure)", why="this rule updates locally, once per step", remedy="rule grad, or a plain optimizer"
        )

    def local_update(self) -> None:
        """One step of the user's optimizer on this rank's mean gradient; gradients are gone afterwards."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if self.context.accumulate > 1:
            self._torch._foreach_mul_(gradients, 1.0 / self.context.accumulate)
        if self.context.clip_norm is not None:
            self._torch.nn.utils.clip_grad_norm_(self.parameters, self.context.clip_norm)
        self.context.optimizer.step()
        self.release()

    def release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def values(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    def adopt(self, tensors: Sequence[Tensor]) -> None:
        """The parameters become these values."""
        with self._torch.no_grad():
            for parameter, tensor in zip(self.parameters, tensors, strict=True):
                parameter.copy_(tensor)

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]


def check_every(rule: object, every: int, least: int = 1) -> None:
    if every < least:
        raise WrongCommand(f"{rule}", why=f"every counts steps, at least {least}")

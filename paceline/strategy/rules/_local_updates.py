"""Common parts of rules with local updates: the optimizer runs on this rank's own gradient."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline.errors import WorkloadError, WrongCommand
from paceline.strategy.rules._context import Carrier, Context
from paceline.types import Lane, Spent

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)


class LocalDuty:
    """A duty that exchanges nothing. Rules with local updates inherit from it, and add what they send and receive."""

    averages_gradients = False
    waits_in_backward = exchanged = False
    under_way = False  # gradients never leave
    refusal: WorkloadError | None = None

    def __init__(self, context: Context) -> None:
        import torch

        self._torch = torch
        self.context, self.parameters = context, list(context.parameters)
        self._carriers: list[Carrier] = []
        self.steps = 0

    def carry(self, lane: Lane, exchange: Any = None, positions: Sequence[int] | None = None) -> Carrier:
        """Open a lane of this rule, over all parameters or those at `positions`."""
        carrier = Carrier(self.context, lane, exchange, positions)
        self._carriers.append(carrier)
        return carrier

    def discard(self) -> None:
        """Discard exchanges that were started for the step that was about to begin."""
        for carrier in self._carriers:
            carrier.drop()

    def finish(self) -> None:
        """Do nothing: a step ends with its update."""

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def begin(self) -> None:
        """Begin a step, before forward; rules that send then override it."""

    def on_held(self, parameter: Tensor) -> None:
        """Do nothing: gradients stay where they are."""

    def on_local(self, parameter: Tensor) -> None:
        """Do nothing: gradients always add up on this rank."""

    def end(self) -> None:
        """Do nothing: backward exchanges nothing."""

    def on_grad(self, parameter: Tensor) -> None:
        """Leave the gradient where it is, and advance exchanges that are under way."""
        self.advance()

    def advance(self) -> None:
        """Advance exchanges that are under way. Hooks of forward and backward call it."""
        self.context.comm.progress()
        for carrier in self._carriers:
            if carrier.sent:
                carrier.engine.advance()

    def leave(self) -> None:
        """End backward; rules that send then override it."""

    def wait(self) -> None:
        """Wait until everything that must be back is back."""

    def sound(self) -> bool:
        return True

    def update(self) -> None:
        raise NotImplementedError

    def synchronize(self) -> None:
        """Do nothing: gradients are this rank's own."""

    def update_with(self, closure: Callable[[], Any], fresh: bool) -> Any:
        raise WrongCommand(
            "step(closure)", why="this rule updates locally, once per step", remedy="rule grad, or a plain optimizer"
        )

    def local_update(self) -> None:
        """Run one step of the user's optimizer on this rank's mean gradient."""
        for parameter in self.parameters:
            if parameter.grad is not None and parameter.grad.requires_grad:  # backward was called with create_graph
                parameter.grad = parameter.grad.detach()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        factor = self.context.local_factor()
        if factor != 1.0 and gradients:
            self._torch._foreach_mul_(gradients, factor)
        if self.context.clip_norm is not None:
            self._torch.nn.utils.clip_grad_norm_(self.parameters, self.context.clip_norm)
        self.context.step()

    def keep(self) -> None:
        """Do nothing: gradients are in their own memory."""

    def release(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def values(self) -> list[Tensor]:
        return [parameter.detach() for parameter in self.parameters]

    def adopt(self, tensors: Sequence[Tensor]) -> None:
        """Set the parameters to these values."""
        with self._torch.no_grad():
            for parameter, tensor in zip(self.parameters, tensors, strict=True):
                parameter.copy_(tensor)

    def take_spent(self) -> Spent:
        """Return no time: nothing runs outside of step()."""
        return Spent()

    def staleness(self) -> Mapping[str, Any]:
        """Return an empty mapping: no rank is ahead of another."""
        return {}

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]

    def own_state(self) -> dict[str, Any]:
        """Return step, rank and size, which identify the owner of a state whose sum over ranks matters."""
        return {"steps": self.steps, "rank": self.context.comm.rank, "size": self.context.comm.size}

    def all_own(self, state: Mapping[str, Any]) -> bool:
        """Return whether every rank holds the state that it saved itself, all of the same step.

        Collective, with the same answer on all ranks. If the answer is no, rank 0 logs it.
        """
        comm = self.context.comm
        step = self._torch.tensor([state["steps"]], dtype=self._torch.int64)
        comm.broadcast(step, 0, "the step of the checkpoint").wait()
        in_step = self.context.exchange.asynchronous or int(step) == state["steps"]
        own = in_step and (state.get("rank"), state.get("size")) == (comm.rank, comm.size)
        vote = self._torch.tensor([float(own)], device=self.parameters[0].device)
        votes = self._torch.empty_like(vote)
        comm.all_sum(vote, votes, "whose state is restored").wait()
        agreed = int(votes) == comm.size
        if not agreed and comm.rank == 0:
            log.warning(
                "%d of %d ranks hold a state that is not their own of one step: the rule starts afresh from the "
                "parameters as they are. try: every rank saves and loads its own file",
                comm.size - int(votes),
                comm.size,
            )
        return agreed


def check_every(rule: object, every: int, least: int = 1) -> None:
    if every < least:
        raise WrongCommand(f"{rule}", why=f"every counts steps, at least {least}")

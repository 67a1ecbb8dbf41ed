"""What `paceline.wrap` returns: one training step of any strategy.

begin -> forward -> backward (hook -> rule -> dispatcher -> exchange) -> wait -> commit -> update
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.engine.device import CpuDevice, Device
from paceline.engine.engine import Engine
from paceline.errors import WorkloadError, WrongCommand
from paceline.protocols import Comm
from paceline.train.evaluate import averaged_statistics
from paceline.train.scaling import LossScale
from paceline.types import Axes, Event, View


@dataclass(slots=True)
class StepTimes:
    """Seconds of the last step that were spent inside `step()`."""

    exposed: float = 0.0
    update: float = 0.0


class Pace:
    """A model and an optimizer, trained together with the other ranks.

    accumulate         backward calls per update; call step() after each, it acts on every k-th
    clip_norm          largest global norm of the mean gradient
    loss_scale         for fp16: scale the loss with scaled(loss) before backward
    private_gradients  never let ranks of a host share the memory of the mean gradient
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        comm: Comm,
        axes: Axes,
        device: Device | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        private_gradients: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.optimizer, self.comm, self.axes = model, optimizer, comm, axes
        self.accumulate, self.clip_norm, self.loss_scale = accumulate, clip_norm, loss_scale
        self.times, self.steps = StepTimes(), 0
        self._micro, self._clock, self._private = 0, clock, private_gradients
        self._given = False
        named = trainable(model)
        start_equal(model, comm)
        view = View(comm.rank, comm.size, comm.placement)
        self._membership = axes.membership.join(view)
        self.engine = Engine(
            [name for name, _ in named],
            [parameter for _, parameter in named],
            comm=comm,
            view=view,
            exchange=axes.exchange,
            schedule=axes.schedule,
            compressor=axes.compressor,
            device=device or CpuDevice(),
            clock=clock,
        )
        self._duty = axes.rule.bind(self.engine, [parameter for _, parameter in named], optimizer)
        self._slot_of = {id(named[k][1]): slot for slot, k in enumerate(self.engine.order)}
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_grad) for _, p in named]
        self._duty.release()
        self._begin()

    # the step -----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Exchange and update; True if the step was committed, False while accumulating or if it was skipped."""
        if closure is not None:
            return self._step_with(closure)
        self._micro += 1
        if self._micro < self.accumulate:
            self._duty.factor = self._factor()
            return False
        began = self._clock()
        if not self._given:
            self.engine.finish()
        waited = self._clock()
        committed = self._membership.commit(self._is_finite())
        if committed:
            self._update()
        self.times.exposed, self.times.update = waited - began, self._clock() - waited
        self._begin()
        return committed

    def synchronize(self) -> None:
        """Set p.grad to the mean gradient now, as this rank's own memory, to look at it or change it before step()."""
        if self._micro + 1 < self.accumulate:
            raise WrongCommand(
                "synchronize() while accumulating",
                why=f"backward {self._micro + 1} of {self.accumulate} is not the last",
                remedy="call it before the last step() of an update",
            )
        self.engine.finish()
        self._duty.give(self._clipping(), private=True)
        self._given = True

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on: scaled for fp16, otherwise as it is."""
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    def _begin(self) -> None:
        self._membership.begin()
        self._micro, self._given = 0, False
        self._duty.factor = self._factor()
        self._duty.begin()
        self.engine.begin(self.steps)

    def _factor(self) -> float:
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        return 1.0 / (self.comm.size * self.accumulate * scale)

    def _on_grad(self, parameter: Tensor) -> None:
        """Autograd has finished the gradient of one parameter; while accumulating it stays where it is."""
        if self._micro + 1 < self.accumulate:
            return
        slot = self._slot_of[id(parameter)]
        if slot in self.engine.arrived:
            raise WorkloadError(
                f"{self.engine.name_of(slot)} got a second gradient at step {self.steps}",
                why="backward ran twice before step()",
                remedy=f"wrap(..., accumulate={self.accumulate + 1}), and step() after each backward",
            )
        self._duty.on_grad(slot)

    def _is_finite(self) -> bool:
        if self.loss_scale is None:
            return True
        finite = self._duty.finite()
        self.loss_scale.record(finite)
        return bool(finite)

    def _update(self) -> None:
        if not self._given:
            self._duty.give(self._clipping(), self._private)
        self._duty.update()
        self.steps += 1
        if self.steps == 1:
            self._settle()
        self._duty.release()

    def _clipping(self) -> float:
        if self.clip_norm is None:
            return 1.0
        return min(1.0, self.clip_norm / (self._duty.norm() + 1e-6))

    def _settle(self) -> None:
        """After the first step it is known in which order gradients come."""
        moved = self.engine.adopt_order()
        self._duty.reordered(moved)
        now = {old: new for new, old in enumerate(moved)}
        self._slot_of = {key: now[slot] for key, slot in self._slot_of.items()}

    def _step_with(self, closure: Callable[[], Tensor]) -> bool:
        """For optimizers that evaluate the model again (LBFGS): each evaluation is exchanged, its loss averaged."""
        if self.accumulate > 1 or self.loss_scale is not None:
            raise WrongCommand(
                "step(closure) with accumulate or loss_scale",
                why="the optimizer decides how often the closure runs",
                remedy="wrap(...) without them",
            )

        def evaluate() -> Tensor:
            loss = closure()
            self.engine.finish()
            self._duty.give(self._clipping(), private=True)
            mean = loss.detach().clone().view(1)
            self.comm.all_sum(loss.detach().view(1) / self.comm.size, mean, "the loss").wait()
            self._micro = 0
            self.engine.begin(self.steps)
            return mean[0]

        self.optimizer.step(evaluate)  # type: ignore[arg-type]
        self.steps += 1
        self._begin()
        return True

    # around it ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, BatchNorm statistics are the mean over ranks: for evaluation and checkpoints."""
        with averaged_statistics(self.model, self.comm):
            yield

    def record_events(self, log: list[Event] | None) -> None:
        self.engine.log = log

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside model and optimizer."""
        scale = None if self.loss_scale is None else self.loss_scale.state()
        return {
            "steps": self.steps,
            "loss_scale": scale,
            "engine": self.engine.state(),
            "rule": dict(self._duty.state()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        if self.loss_scale is not None and state["loss_scale"]:
            self.loss_scale.restore(state["loss_scale"])
        self.engine.restore(state["engine"])
        self._duty.restore(state["rule"])

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def trainable(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Named parameters that want a gradient, shared ones once, in the order in which backward reaches them."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise WorkloadError(f"{type(model).__name__} has nothing to train", why="no parameter wants a gradient")
    return named[::-1]


def start_equal(model: nn.Module, comm: Comm) -> None:
    """Rank 0's parameters and buffers, everywhere."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            comm.broadcast(tensor.data, 0, name).wait()

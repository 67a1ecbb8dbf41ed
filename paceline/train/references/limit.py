"""The reference limit: the same steps with a barrier, but without exchange. It bounds synchronous strategies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from paceline.comm.transport import Comm
from paceline.engine.device import Device
from paceline.engine.engine import Engine
from paceline.train.checks import check_closure
from paceline.train.evaluate import averaged_statistics
from paceline.train.metrics import LogsMetrics
from paceline.train.scaling import LossScale
from paceline.train.takeover import Takeover
from paceline.train.times import StepTimes, note_step
from paceline.types import Noted


class Limit(LogsMetrics):
    """Makes steps like Pace, but every rank keeps its own gradients."""

    replicas_differ = True
    engines: Sequence[Engine] = ()  # a reference has none
    steps_to_plan = 0
    note = "limit: gradients are not exchanged; ranks train apart and only meet at a barrier"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        comm: Comm,
        device: Device,
        accumulate: int = 1,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.model, self.optimizer, self.comm = model, optimizer, comm
        self.accumulate, self.clip_norm, self.loss_scale = accumulate, clip_norm, loss_scale
        self.times, self.steps, self._micro = StepTimes(), 0, 0
        self._finite: bool | None = None  # whether prepared gradients are finite; None before they are prepared
        self.on_step: Callable[[], None] | None = None
        self._log: list[Noted] | None = None
        self._takeover: Takeover | None = None

    @property
    def buckets(self) -> Sequence[int]:
        """Bytes of each bucket that is exchanged in a step: none."""
        return ()

    def take_over(self) -> None:
        """Make optimizer.step() call step(), as `wrap` does for a strategy, so that a user's loop works unchanged."""
        self._takeover = Takeover(self.optimizer, self._optimizer_step)

    def _optimizer_step(self, closure: Callable[[], Tensor] | None = None) -> None:
        self.step(closure)

    def _run_step(self, *arguments: Any) -> Any:
        own = self.optimizer.step if self._takeover is None else self._takeover.run
        return own(*arguments)

    def no_sync(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing, because gradients are never exchanged."""
        return contextlib.nullcontext()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimizer, so that GradScaler can step a reference as well."""
        return self.optimizer.param_groups

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        if closure is not None:
            check_closure(self.accumulate, self.loss_scale)
        self._micro += 1
        if self._micro < self.accumulate:
            return False
        self._micro = 0
        began = time.perf_counter()
        self.meet()
        waited = time.perf_counter()
        self._update() if closure is None else self._update_with(closure)
        updated = time.perf_counter()
        self.times.exposed, self.times.update = waited - began, updated - waited
        if self._log is not None:
            note_step(self._log, self.steps, began, waited, updated)
        self.steps += 1
        if self.on_step is not None:
            self.on_step()
        return True

    def synchronize(self) -> None:
        """Make p.grad the gradient that the optimizer will use: scaled and clipped."""
        self._prepare()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def meet(self) -> None:
        self.comm.barrier()

    def _prepare(self) -> bool:
        """Divide gradients by the number of backwards and the loss scale, and clip them. Return whether all are finite.

        Further calls in the same step do nothing.
        """
        if self._finite is not None:
            return self._finite
        gradients = [p.grad.detach() for p in self.model.parameters() if p.grad is not None]
        factor, self._finite = 1.0 / self.accumulate, True
        if self.loss_scale is not None or self.clip_norm is not None:
            norm = float(torch.nn.utils.get_total_norm(gradients))
            factor /= 1.0 if self.loss_scale is None else self.loss_scale.value
            self._finite = norm - norm == 0
            if self.clip_norm is not None:
                factor *= min(1.0, self.clip_norm / (norm * factor + 1e-6))
        if self._finite and factor != 1.0:
            torch._foreach_mul_(gradients, factor)
        return self._finite

    def _update(self) -> None:
        finite = self._prepare()
        if self.loss_scale is not None:
            self.loss_scale.record(finite)
        if finite:
            self._run_step()
        self._forget()

    def _update_with(self, closure: Callable[[], Tensor]) -> None:
        """Update with an optimizer that evaluates the model several times. Each evaluation gets fresh gradients."""

        def evaluate() -> Any:
            self._forget()
            loss = closure()
            self._prepare()
            return self.agreed(loss.detach())

        self._run_step(evaluate)
        self._forget()

    def agreed(self, loss: Tensor) -> Tensor:
        """Return this rank's own loss, because ranks do not exchange anything."""
        return loss

    def _forget(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._finite = None

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        with averaged_statistics(self.model, self.comm):
            yield

    def finish(self) -> StepTimes:
        return StepTimes()

    def staleness(self) -> dict[str, Any]:
        """Return an empty dict, because every rank works on its own parameters."""
        return {}

    def record_events(self, log: list[Noted] | None) -> None:
        self._log = log

    def close(self) -> None:
        if self._takeover is not None:
            self._takeover.end()

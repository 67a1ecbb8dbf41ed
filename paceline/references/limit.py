"""The limit: the same steps and a barrier, no communication. No synchronous strategy can be faster for long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from paceline.engine.device import Device
from paceline.protocols import Comm
from paceline.train.evaluate import averaged_statistics
from paceline.train.pace import StepTimes, note_step
from paceline.train.scaling import LossScale
from paceline.types import Event


class Limit:
    """Steps as Pace does, gradients stay on their rank."""

    replicas_differ = True
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
        self.on_step: Callable[[], None] | None = None
        self._log: list[Event] | None = None

    def scaled(self, loss: Tensor) -> Tensor:
        scale = 1.0 if self.loss_scale is None else self.loss_scale.value
        return loss * (scale / self.accumulate) if scale != self.accumulate else loss

    def step(self) -> bool:
        self._micro += 1
        if self._micro < self.accumulate:
            return False
        self._micro = 0
        began = time.perf_counter()
        self.meet()
        waited = time.perf_counter()
        self._update()
        updated = time.perf_counter()
        self.times.exposed, self.times.update = waited - began, updated - waited
        if self._log is not None:
            note_step(self._log, self.steps, began, waited, updated)
        self.steps += 1
        if self.on_step is not None:
            self.on_step()
        return True

    def synchronize(self) -> None:
        """Gradients are this rank's own already."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def meet(self) -> None:
        self.comm.barrier()

    def _update(self) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        factor, finite = 1.0, True
        if self.loss_scale is not None or self.clip_norm is not None:
            norm = float(torch.nn.utils.get_total_norm(gradients))
            factor = 1.0 / (1.0 if self.loss_scale is None else self.loss_scale.value)
            finite = norm - norm == 0
            if self.clip_norm is not None:
                factor *= min(1.0, self.clip_norm / (norm * factor + 1e-6))
        if self.loss_scale is not None:
            self.loss_scale.record(finite)
        if finite:
            if factor != 1.0:
                torch._foreach_mul_(gradients, factor)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        with averaged_statistics(self.model, self.comm):
            yield

    def finish(self) -> StepTimes:
        return StepTimes()

    def record_events(self, log: list[Event] | None) -> None:
        self._log = log

    def close(self) -> None:
        pass

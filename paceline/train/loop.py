"""The training loop, with the whole step on one screen."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from paceline.errors import NonFinite, WorkloadError
from paceline.measure.meter import Meter
from paceline.train.labels import blamed
from paceline.types import Workload
from paceline.workload.feed import Feed
from paceline.workload.objects.bucket import Counts
from paceline.workload.sources._source import Samples
from paceline.workload.stream.feed import StreamFeed

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Training:
    """Everything that one rank needs to train; `pace` is a Pace or a reference."""

    workload: Workload
    model: Any
    pace: Any
    feed: Feed | StreamFeed
    rank: int = 0
    accumulate: int = 1
    precision: str = "fp32"
    device: str = "cpu"
    tests: Samples | None = None
    place: Callable[[Any], Any] = lambda batch: batch
    losses: list[float] = field(default_factory=list)
    samples: int = 0  # number of samples that this rank has trained on
    optimizer: Any = None
    notes: tuple[str, ...] = ()  # of the source, for the record
    counts: Callable[[], Counts | None] = lambda: None  # requests to an object store, if samples come from one
    rate: Callable[[float], float] | None = None  # the learning rate at a time in epochs

    def steps(self, count: int, meter: Meter, *, drain: bool = True) -> None:
        """Make `count` updates and record the parts of their time in the meter.

        Without `drain`, an exchange that crosses the last step stays under way, and the caller must call `drain()`.
        """
        for number in range(count):
            meter.start()
            self._set_rate()
            for _ in range(self.accumulate):
                batch = next(self.feed)
                self.samples += self.feed.count
                meter.lap("data")
                loss = self._loss(batch)
                meter.lap("forward")
                self._check(loss)
                self.pace.scaled(self._weighed(loss)).backward()
                meter.lap("backward")
                self.pace.step()
            self._account(self.pace.times, meter)
            if drain and number + 1 == count:  # finish the last update before the clock stops
                last = self.pace.finish()
                self._account(replace(last, in_forward=0.0, in_backward=0.0), meter)
            meter.stop()

    def _loss(self, batch: Any) -> Any:
        try:
            with self.autocast():
                return self.workload.loss(self.model, batch)
        except IndexError as problem:
            raise blamed(problem, batch, self.feed.ids, "training") or problem from None

    def drain(self) -> None:
        """Finish the exchange that crosses the last step, if there is one."""
        self.pace.finish()

    def _set_rate(self) -> None:
        """Set the learning rate of the next update, according to the position of its first batch."""
        if self.rate is not None and isinstance(self.feed, Feed):  # a stream has no epochs; compose refuses both
            value = self.rate(self.feed.cursor.epoch + self.feed.cursor.step / self.feed.order.steps)
            for group in self.optimizer.param_groups:
                group["lr"] = value

    def _weighed(self, loss: Any) -> Any:
        """Scale the loss if this rank's batch is smaller or larger than others, so that all samples weigh the same."""
        correction = self.feed.correction
        return loss if correction == 1.0 else loss * correction

    def _account(self, times: Any, meter: Meter) -> None:
        """Count waiting and updating that happened inside forward or backward only as waiting and updating."""
        meter.add("exposed", times.exposed)
        meter.add("update", times.update)
        meter.add("forward", -times.in_forward)
        meter.add("backward", -times.in_backward)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=_HALF[self.precision])

    def _check(self, loss: Any) -> None:
        """Raise if the loss is not one finite number. On a GPU, settle() checks it later, because reading it blocks."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise WorkloadError(f"the loss is {_spoken(loss)}", why="it must be a tensor with one element")
        if self.device != "cpu":
            self._last = loss.detach()
            return
        self._keep(loss.item())

    def _keep(self, value: float) -> None:
        self.losses.append(value)
        if not math.isfinite(value) and not self._is_scaled():
            raise NonFinite(
                f"rank {self.rank}: the loss is {value} at step {self.pace.steps}",
                why="training cannot go on from there",
                remedy="a smaller learning rate, or look at the batch of that rank",
            )

    def _is_scaled(self) -> bool:
        """Return whether an overflow only skips the step, because the loss scale can still be lowered."""
        scale = self.pace.loss_scale
        return scale is not None and scale.value > 1.0

    def settle(self) -> None:
        """Check the last loss on a GPU. Called after a block of steps."""
        if self.device != "cpu":
            self._keep(self._last.item())


def _spoken(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__

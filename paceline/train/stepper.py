"""The protocol of objects that make training steps: a Pace or a reference. The training loop uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from paceline.comm.transport import Comm
from paceline.types import Noted

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paceline.engine.device import Device
    from paceline.engine.engine import Engine
    from paceline.train.scaling import LossScale
    from paceline.train.times import StepTimes


class Stepper(Protocol):
    """A model and an optimizer that make training steps, with or without exchanging with other ranks."""

    model: nn.Module
    loss_scale: LossScale | None
    times: StepTimes  # of the last step
    steps: int  # number of committed steps
    on_step: Callable[[], None] | None

    @property
    def comm(self) -> Comm:
        """Return the comm of the current group."""

    @property
    def note(self) -> str:
        """Return a remark on how to read the figures of a reference; empty for a Pace."""

    @property
    def engines(self) -> Sequence[Engine]:
        """Return the engines, one for each lane of the rule. A reference has none."""

    @property
    def steps_to_plan(self) -> int:
        """Return an estimate of the steps until the plan is final; 0 once it is final."""

    @property
    def replicas_differ(self) -> bool:
        """Return whether ranks may hold different parameters between steps."""

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to call backward on: scaled for fp16, otherwise unchanged."""

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Update the parameters. Return True if the step was committed."""

    def synchronize(self) -> None:
        """Set p.grad to the gradient that the optimizer will use."""

    def finish(self) -> StepTimes:
        """Finish the exchange and the update of the last step. Return the time that this took."""

    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which BatchNorm statistics are the mean over ranks."""

    def staleness(self) -> dict[str, Any]:
        """Return when gradients left and parameters came back, if workers may be ahead of others; otherwise empty."""

    def record_events(self, log: list[Noted] | None) -> None:
        """Append events to a list from now on. None stops recording."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Reference(Protocol):
    """A class of train/references. It creates a stepper that races against strategies."""

    def __call__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        comm: Comm,
        device: Device,
        accumulate: int = 1,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> Stepper: ...

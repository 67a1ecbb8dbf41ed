"""The seam between the training loop and a Pace or a reference: the object that makes steps."""

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
    """A model and an optimizer that make steps together with other ranks, or beside them."""

    model: nn.Module
    loss_scale: LossScale | None
    times: StepTimes  # of the last step
    steps: int  # that were committed
    on_step: Callable[[], None] | None

    @property
    def comm(self) -> Comm:
        """The comm of the group of now."""

    @property
    def note(self) -> str:
        """How its figures are to be read; empty for a Pace."""

    @property
    def engines(self) -> Sequence[Engine]:
        """One for each lane of its rule; a reference has none."""

    @property
    def steps_to_plan(self) -> int:
        """Steps until its plan is final, as far as is known; 0 from then on."""

    @property
    def replicas_differ(self) -> bool:
        """Whether ranks may hold different parameters between steps."""

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on."""

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Update; True if the step was committed."""

    def synchronize(self) -> None:
        """Make p.grad the gradient that the optimizer will see."""

    def finish(self) -> StepTimes:
        """Apply what is outstanding of the last step, and return the time that it took."""

    def averaged(self) -> AbstractContextManager[None]:
        """Inside, BatchNorm statistics are the mean over ranks."""

    def staleness(self) -> dict[str, Any]:
        """When gradients left and parameters were back, where workers may be apart; otherwise empty."""

    def record_events(self, log: list[Noted] | None) -> None:
        """Write events into a list from now on; None ends that."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Reference(Protocol):
    """A member of train/references: makes a stepper that is raced against strategies."""

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

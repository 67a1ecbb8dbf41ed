"""The context that a rule is bound to: the parameters of a model, its optimizer, and a way to open lanes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.errors import WorkloadError
from paceline.types import Lane

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from paceline.comm.transport import Comm
    from paceline.protocols import Exchange, Presence
    from paceline.strategy.rules._lane import LaneEngine, LaneGates


@dataclass(frozen=True)
class Context:
    """The parameters, optimizer and comm that a rule is bound to, and the way to open lanes.

    `open_lane(lane, exchange)` returns an engine for one vector over all parameters; with None it uses the exchange of
    the run. `open_lane(lane, exchange, positions)` returns one for the parameters at these positions.

    `weight()` is the factor of this rank's gradient in the sum over ranks for the present batch: n / N if n of the N
    samples of a step are its own. Rules read it with the first gradient of a step, because the batch is not known
    before.
    """

    parameters: Sequence[Parameter]
    optimizer: Optimizer
    presence: Presence
    exchange: Exchange
    open_lane: Callable[..., LaneEngine]
    accumulate: int = 1
    clip_norm: float | None = None
    loss_scale: Any = None
    private_gradients: bool = False
    clock: Callable[[], float] = time.monotonic  # shared by all processes of a host
    weight: Callable[[], float] | None = None  # equal shares by default
    # Set if the schedule crosses the step.
    open_gates: Callable[[Callable[[Sequence[int]], None]], LaneGates] | None = None
    on_forward: Callable[[Callable[[], None]], None] = lambda act: None  # calls `act` before every layer of a forward
    run_step: Callable[..., Any] | None = None  # the optimizer's own step, if wrap has replaced optimizer.step()
    make_optimizer: Callable[[str, Sequence[Any]], Any] = lambda text, parameters: None  # one of torch.optim

    def step(self, *closure: Any) -> Any:
        """Run the optimizer's own step."""
        return (self.run_step or self.optimizer.step)(*closure)

    def mean(self, value: Any, key: str) -> Any:
        """Return the mean of a number or a tensor with one element over all ranks; None stays None."""
        import torch

        if value is None:
            return None
        share = torch.as_tensor(value).detach().view(1) / self.comm.size
        mean = torch.empty_like(share)
        self.comm.all_sum(share, mean, key).wait()
        return mean[0] if isinstance(value, torch.Tensor) else float(mean)

    @property
    def comm(self) -> Comm:
        """The comm of the present group; it changes with the generation."""
        return self.presence.comm

    def factor(self) -> float:
        """Return the factor by which this rank multiplies its gradient before the sum over ranks."""
        return 1.0 / (self.comm.size * self.accumulate) if self.weight is None else self.weight()

    def local_factor(self) -> float:
        """Return the factor of this rank's gradient in its own update.

        The mean over ranks is then weighted by samples.
        """
        if self.weight is None:
            return 1.0 / self.accumulate
        factor = self.weight() * self.comm.size
        return 1.0 if abs(factor - 1.0) < 1e-9 else factor  # n times 1/n may be off by one bit

    def twice(self, name: str, step: int) -> WorkloadError:
        """Return the error for a gradient that comes a second time after it has left."""
        return WorkloadError(
            f"{name} got a second gradient at step {step}",
            why="backward ran twice before step(), or reached a layer twice that is used twice in the model and is "
            "checkpointed with use_reentrant=True",
            remedy="(loss1 + loss2).backward(), or accumulate=2 with step() after each, which averages; "
            "checkpoint(..., use_reentrant=False); or --rule grad with --schedule fusion, which adds them up",
        )


class Carrier:
    """One lane that carries tensors of the parameters' shapes, or of those at `positions`: fill, send, wait, read.

    A consensus exchange sums, so tensors are divided by the number of ranks before they leave. Among neighbors, the
    mixing has the weights.
    """

    def __init__(
        self, context: Context, lane: Lane, exchange: Exchange | None = None, positions: Sequence[int] | None = None
    ) -> None:
        self.engine = context.open_lane(lane, exchange, positions)
        self._context, self._sums = context, (exchange or context.exchange).consensus
        self.sent = False

    def send(self, number: int, tensors: Sequence[Tensor]) -> None:
        """Send `tensors`, in the order of the parameters; `number` counts exchanges, for topologies that change."""
        self.engine.begin(number)
        factor = 1.0 / self._context.comm.size if self._sums else 1.0
        for slot, position in enumerate(self.engine.order):
            source, since = self.engine.source(slot), self.engine.glance()
            source.copy_(tensors[position])
            if factor != 1.0:
                source.mul_(factor)
            self.engine.offer(slot, since)
        self.sent = True

    def wait(self) -> None:
        if self.sent:
            self.engine.finish()

    def widened(self, tensor: Tensor) -> Tensor:
        """Return a copy in the dtype of the lane."""
        return tensor.to(self.engine.carried(tensor), copy=True)

    def drop(self) -> None:
        """Wait for the exchange that is under way, and discard its result."""
        self.wait()
        self.sent = False

    def take(self) -> list[Tensor]:
        """Return the results, in the order of the parameters."""
        self.sent = False
        views = [view for arena in self.engine.arenas for view in arena.result_views]
        ordered: list[Tensor] = [views[0]] * len(views)
        for slot, position in enumerate(self.engine.order):
            ordered[position] = views[slot]
        return ordered

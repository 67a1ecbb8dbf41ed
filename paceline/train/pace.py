"""What `paceline.wrap` returns: one training step of any strategy.

begin -> forward -> backward (hook -> rule -> dispatcher -> exchange) -> wait -> commit -> update
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.bench.profile import StepProfile
from paceline.compressors.codec import check_model
from paceline.engine.crossing import CrossingEngine
from paceline.engine.device import CpuDevice, Device
from paceline.engine.engine import Engine
from paceline.engine.gates import Gates, for_one
from paceline.errors import WrongCommand
from paceline.protocols import Exchange
from paceline.rules.context import Context
from paceline.rules.crossing import CrossingDuty
from paceline.train.checks import check_added, check_closure, check_known, check_thawed, trainable
from paceline.train.evaluate import averaged_statistics
from paceline.train.planning import Planning
from paceline.train.scaling import LossScale
from paceline.train.watch import Watch
from paceline.transport import Comm
from paceline.types import Axes, Event, Lane, Noted, Slot, View


@dataclass(slots=True)
class StepTimes:
    """Seconds of the last step: waiting for communication, and updating.

    Where a schedule crosses the step, `in_forward` of them passed inside forward and `in_backward` at the beginning
    of backward; all others passed inside `step()`.
    """

    exposed: float = 0.0
    update: float = 0.0
    in_forward: float = 0.0
    in_backward: float = 0.0


class Pace:
    """A model and an optimizer, trained together with the other ranks.

    accumulate         backward calls per update; call step() after each, it acts on every k-th
    clip_norm          largest global norm of the mean gradient
    loss_scale         for fp16: scale the loss with scaled(loss) before backward
    private_gradients  never let ranks of a host share the memory of the mean gradient
    profile            layer times to plan with; without it a schedule that needs them measures them
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
        profile: StepProfile | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.optimizer, self.comm, self.axes = model, optimizer, comm, axes
        self.accumulate, self.loss_scale = accumulate, loss_scale
        self.times, self.steps, self._micro, self._clock = StepTimes(), 0, 0, clock
        self.engines: list[Engine] = []
        self._hooks: list[Any] = []
        self._log: list[Noted] | None = None
        self.on_step: Callable[[], None] | None = None
        self._defers, self.closed = False, False
        self._device, self._named = device or CpuDevice(), trainable(model)
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._known = {id(p) for _, p in [*self._named, *self._frozen]}
        check_known(model, optimizer)
        check_model(axes.compressor, [Slot(name, p.numel(), tuple(p.shape)) for name, p in self._named])
        start_equal(model, comm)
        self._view = View(comm.rank, comm.size, comm.placement)
        self._presence = axes.membership.join(self._view)
        self.duty = axes.rule.bind(
            Context(
                parameters=[parameter for _, parameter in self._named],
                optimizer=optimizer,
                comm=comm,
                exchange=axes.exchange,
                open_lane=self._open_lane,
                accumulate=accumulate,
                clip_norm=clip_norm,
                loss_scale=loss_scale,
                private_gradients=private_gradients,
                open_gates=self._open_gates if axes.schedule.crosses_step else None,
            )
        )
        self._planning = self._plans(profile) if axes.schedule.measures and self.duty.averages_gradients else None
        self._hooks += [p.register_post_accumulate_grad_hook(self._on_grad) for _, p in self._named]
        # The first step begins with its first gradient, so that a checkpoint may still be loaded after wrap.
        self._begun = False

    def _open_lane(self, lane: Lane, exchange: Exchange | None = None) -> Engine:
        """An engine for one vector over all parameters."""
        kind = CrossingEngine if self.axes.schedule.crosses_step else Engine
        engine = kind(
            [name for name, _ in self._named],
            [parameter for _, parameter in self._named],
            lane=lane,
            comm=self.comm,
            view=self._view,
            exchange=self._phased(exchange or self.axes.exchange),
            schedule=self.axes.schedule,
            compressor=self.axes.compressor,
            device=self._device,
            clock=self._clock,
        )
        self.engines.append(engine)
        return engine

    def _phased(self, exchange: Exchange) -> Any:
        """The exchange itself, or in two phases for a schedule that puts forward between them."""
        return exchange.decoupled() if self.axes.schedule.decouples else exchange  # type: ignore[attr-defined]

    def _open_gates(self, arrive: Callable[[Sequence[int]], None]) -> Gates:
        """Forward waits for its parameters from now on, and so does whoever saves or loads them."""
        settle = for_one(self.model, lambda *_: self.duty.finish())
        self._hooks += [
            self.model.register_state_dict_pre_hook(settle),
            self.model.register_load_state_dict_pre_hook(settle),
            self.optimizer.register_state_dict_pre_hook(lambda *_: self.duty.finish()),
            self.optimizer.register_load_state_dict_pre_hook(lambda *_: self.duty.finish()),
        ]
        return Gates(self.model, [parameter for _, parameter in self._named], arrive)

    def watch(self) -> Watch:
        """Look at layer times from now on; rule grad only."""
        return Watch(self.model, self.engines[0], [parameter for _, parameter in self._named], self._clock)

    def _plans(self, profile: StepProfile | None) -> Planning:
        parameters = [parameter for _, parameter in self._named]
        return Planning(
            self.model,
            self.engines[0],
            parameters,
            comm=self.comm,
            clock=self._clock,
            settle=self.duty.finish,
            given=profile,
        )

    @property
    def steps_to_plan(self) -> int:
        """Steps until the plan is final, as far as one can say; 0 from then on."""
        return 0 if self._planning is None else self._planning.left

    # the step -----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Exchange and update; True if the step was committed, False while accumulating or if it was skipped."""
        if closure is not None:
            return self._step_with(closure)
        self._micro += 1
        if self._micro < self.accumulate:
            return False
        self._check_exchanged()
        self._ensure_begun()
        began = self._clock()
        self.duty.leave()
        left = self._clock()
        self.duty.wait()
        waited = self._clock()
        committed = self._presence.commit(self.duty.sound())
        if committed:
            self.duty.update()
            self.steps += 1
            if self._planning is not None and self._planning.stepped():
                self._planning = None
        updated = self._clock()
        self.times = self._times(waited - left, left - began + updated - waited)
        if self._log is not None:
            note_step(self._log, self.steps - committed, left, waited, updated)
        if self._defers:
            last = self.finish()  # what crosses the step would meet that of another model
            self.times.exposed += last.exposed
            self.times.update += last.update
        self._begin()
        if self.on_step is not None:
            self.on_step()
        return committed

    def _times(self, exposed: float, update: float) -> StepTimes:
        if not isinstance(self.duty, CrossingDuty):
            return StepTimes(exposed, update)
        spent = self.duty.take_spent()
        in_forward = spent.waited + spent.updated - spent.in_backward
        return StepTimes(exposed + spent.waited, update + spent.updated, in_forward, spent.in_backward)

    def finish(self) -> StepTimes:
        """Apply what is outstanding of the last step, where a schedule crosses it; then parameters may be read.

        Saving, loading and running the model do so by themselves. Between backward and step() gradients that have begun
        to leave are exchanged now, and step() updates. Returns the time that it took.
        """
        self.duty.finish()
        return self._times(0.0, 0.0)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are exchanged: those that wanted gradients at wrap."""
        return [parameter for _, parameter in self._named]

    @property
    def under_way(self) -> bool:
        """Whether gradients have left for a step whose exchange has not ended."""
        return bool(getattr(self.duty, "under_way", False))

    def defer(self) -> None:
        """From now on gradients leave in step(), and all that it sends is back when it returns."""
        self.finish()
        self._defers = True

    def synchronize(self) -> None:
        """Set p.grad to the mean gradient now, as this rank's own memory, to look at it or change it before step()."""
        if self._micro + 1 < self.accumulate:
            raise WrongCommand(
                "synchronize() while accumulating",
                why=f"backward {self._micro + 1} of {self.accumulate} is not the last",
                remedy="call it before the last step() of an update",
            )
        self._ensure_begun()
        self.duty.synchronize()

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call backward on: scaled for fp16, otherwise as it is."""
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    def _begin(self) -> None:
        self._presence.begin()
        self._micro, self._begun = 0, True
        self.duty.begin()

    def _ensure_begun(self) -> None:
        if not self._begun:
            micro = self._micro
            self._begin()
            self._micro = micro

    def _on_grad(self, parameter: Tensor) -> None:
        """Autograd has finished the gradient of one parameter; while accumulating it stays where it is."""
        if self._micro + 1 < self.accumulate:
            return
        if self._defers:
            self.duty.on_held(parameter)
            return
        self._ensure_begun()
        self.duty.on_grad(parameter)

    def _check_exchanged(self) -> None:
        """What the optimizer updates is exchanged: only what was frozen or not there at wrap may have changed that."""
        updated = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not updated <= self._known:
            check_added([name for name, p in self.model.named_parameters() if id(p) in updated - self._known])
            check_known(self.model, self.optimizer)
        check_thawed([name for name, p in self._frozen if p.requires_grad and id(p) in updated])

    def _step_with(self, closure: Callable[[], Tensor]) -> bool:
        """For optimizers that evaluate the model again (LBFGS): each evaluation is exchanged, its loss averaged."""
        check_closure(self.accumulate, self.loss_scale)
        self._check_exchanged()
        self._ensure_begun()
        self.duty.update_with(closure)
        self.steps += 1
        if self.on_step is not None:
            self.on_step()
        return True

    # around it ----------------------------------------------------------------------------------

    @property
    def replicas_differ(self) -> bool:
        """Whether ranks may hold different parameters between steps."""
        return not self.axes.rule.same_result

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside, BatchNorm statistics are the mean over ranks: for evaluation and checkpoints."""
        self.finish()
        with averaged_statistics(self.model, self.comm):
            yield

    def record_events(self, log: list[Noted] | None) -> None:
        self._log = log
        for engine in self.engines:
            engine.log = log

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside model and optimizer."""
        self.finish()
        scale = None if self.loss_scale is None else self.loss_scale.state()
        return {
            "steps": self.steps,
            "loss_scale": scale,
            "engines": [engine.state() for engine in self.engines],
            "rule": dict(self.duty.state()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Between steps, on all ranks; load model and optimizer first."""
        self.duty.discard()
        self.steps, self._begun = state["steps"], False
        if self.loss_scale is not None and state["loss_scale"]:
            self.loss_scale.restore(state["loss_scale"])
        for engine, saved in zip(self.engines, state["engines"], strict=True):
            engine.restore(saved)
        self.duty.restore(state["rule"])

    def close(self) -> None:
        self.closed = True
        self.duty.close()
        for engine in () if self.under_way else self.engines:
            engine.release()
        for hook in self._hooks:
            hook.remove()


def note_step(log: list[Noted], step: int, left: float, waited: float, updated: float) -> None:
    """What the end of a step leaves in the event stream."""
    log += [Event(left, "left", step), Event(waited, "waited", step), Event(updated, "updated", step)]


def start_equal(model: nn.Module, comm: Comm) -> None:
    """Rank 0's parameters and buffers, everywhere."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            comm.broadcast(tensor.data, 0, name).wait()

"""Pace, the object that `paceline.wrap` returns: one training step of any strategy.

begin -> forward -> backward (hook -> rule -> dispatcher -> exchange) -> wait -> commit -> update
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline.comm.notes import Part
from paceline.comm.transport import Comm
from paceline.engine.crossing import engine_of
from paceline.engine.device import CpuDevice, Device
from paceline.engine.engine import Engine
from paceline.engine.gates import Gates, for_one
from paceline.engine.way import way_of
from paceline.errors import WrongCommand
from paceline.protocols import Exchange
from paceline.run.axes import Axes
from paceline.strategy.rules._context import Context
from paceline.train.checks import check_added, check_closure, check_known, check_thawed, trainable
from paceline.train.evaluate import averaged_statistics
from paceline.train.planning import Planning
from paceline.train.scaling import LossScale
from paceline.train.watch import Watch
from paceline.types import Event, Lane, Noted, Slot, View
from paceline.workload.profile import StepProfile


@dataclass(slots=True)
class StepTimes:
    """Seconds of the last step: waiting for communication, and updating.

    If the schedule crosses the step, `in_forward` seconds were spent inside forward and `in_backward` at the start
    of backward; the rest was spent inside `step()`.
    """

    exposed: float = 0.0
    update: float = 0.0
    in_forward: float = 0.0
    in_backward: float = 0.0


class Pace:
    """A model and an optimizer, trained together with the other ranks.

    accumulate         backward calls per update; call step() after each, every k-th call updates
    clip_norm          largest global norm of the mean gradient
    loss_scale         for fp16: scale the loss with scaled(loss) before backward
    private_gradients  give every rank its own memory for the mean gradient, even on one host
    profile            layer times for schedules that need them; measured in the first steps by default
    """

    note = ""  # a reference says here how its figures are to be read

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
        self.model, self.optimizer, self.axes = model, optimizer, axes
        self.accumulate, self.loss_scale = accumulate, loss_scale
        self.times, self.steps, self._micro, self._clock = StepTimes(), 0, 0, clock
        self.engines: list[Engine] = []
        self._hooks: list[Any] = []
        self._log: list[Noted] | None = None
        self.on_step: Callable[[], None] | None = None
        self.share: Callable[[], float | None] | None = None  # n / N of the batch in training; equal if not known
        self._defers, self.closed = False, False
        self._device, self._named = device or CpuDevice(), trainable(model)
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._known = {id(p) for _, p in [*self._named, *self._frozen]}
        check_known(model, optimizer)
        axes.compressor.check([Slot(name, p.numel(), tuple(p.shape)) for name, p in self._named])
        self._way = way_of(axes.schedule)
        self._presence = axes.membership.join(comm)
        self._view: View | None = None  # until this rank has entered a group
        if not axes.membership.elastic:
            start_equal(model, comm)
            self._enter(self._presence.begin())
        self.duty = axes.rule.bind(
            Context(
                parameters=[parameter for _, parameter in self._named],
                optimizer=optimizer,
                presence=self._presence,
                exchange=axes.exchange,
                open_lane=self._open_lane,
                accumulate=accumulate,
                clip_norm=clip_norm,
                loss_scale=loss_scale,
                private_gradients=private_gradients,
                weight=self._weight,
                open_gates=self._open_gates if self._way.crosses else None,
                on_forward=self._on_forward,
            )
        )
        self._planning = self._plans(profile) if axes.schedule.measures and self.duty.averages_gradients else None
        self._hooks += [p.register_post_accumulate_grad_hook(self._on_grad) for _, p in self._named]
        # The first step starts with its first gradient, so that a checkpoint may still be loaded after wrap.
        self._begun = False

    def _weight(self) -> float:
        """Return the factor of this rank's gradient in the mean of all samples of a step."""
        share = None if self.share is None else self.share()
        return 1.0 / (self.comm.size * self.accumulate) if share is None else share / self.accumulate

    def _open_lane(self, lane: Lane, exchange: Exchange | None = None) -> Engine:
        """Create the engine of one vector over all parameters."""
        exchange = exchange or self.axes.exchange
        engine = engine_of(self._way)(
            [name for name, _ in self._named],
            [parameter for _, parameter in self._named],
            lane=lane,
            exchange=self._phased() or exchange,
            schedule=self.axes.schedule,
            compressor=self.axes.compressor,
            device=self._device,
            clock=self._clock,
            widens=lane.half == "float32" or (lane.half == "mixed" and not exchange.mixes_once),
        )
        if self._view is not None:
            engine.enter(self.comm, self._view)
        self.engines.append(engine)
        return engine

    @property
    def comm(self) -> Comm:
        """Return the comm of the group that this rank is in now."""
        return self._presence.comm

    def _enter(self, view: View) -> None:
        """Enter the group of a view with every engine; unfinished exchanges of the group before are dropped."""
        self._view = view
        for engine in self.engines:
            engine.abandon()
            engine.enter(self.comm, view)

    def _phased(self) -> Exchange | None:
        """Return the exchange in two phases if the schedule runs forward between them, else None."""
        return self.axes.exchange.decoupled() if self._way.phases > 1 else None

    def _open_gates(self, arrive: Callable[[Sequence[int]], None]) -> Gates:
        """Make forward wait for its parameters from now on, and saving and loading as well."""
        settle = for_one(self.model, lambda *_: self.duty.finish())
        self._hooks += [
            self.model.register_state_dict_pre_hook(settle),
            self.model.register_load_state_dict_pre_hook(settle),
            self.optimizer.register_state_dict_pre_hook(lambda *_: self.duty.finish()),
            self.optimizer.register_load_state_dict_pre_hook(lambda *_: self.duty.finish()),
        ]
        return Gates(self.model, [parameter for _, parameter in self._named], arrive)

    def _on_forward(self, act: Callable[[], None]) -> None:
        """Call `act` before every layer with parameters runs, so that exchanges go on during forward."""
        for module in self.model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                self._hooks.append(module.register_forward_pre_hook(for_one(module, lambda *_: act())))

    def watch(self) -> Watch:
        """Start measuring layer times; rule grad only."""
        return Watch(self.model, self.engines[0], [parameter for _, parameter in self._named], self._clock)

    def _plans(self, profile: StepProfile | None) -> Planning:
        parameters = [parameter for _, parameter in self._named]
        return Planning(
            self.model,
            self.engines[0],
            parameters,
            clock=self._clock,
            settle=self.duty.finish,
            profile=profile,
        )

    @property
    def steps_to_plan(self) -> int:
        """Return an estimate of the steps until the plan is final; 0 once it is."""
        return 0 if self._planning is None else self._planning.left

    # the step -----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Exchange and update. Return True if the step was committed, False while accumulating or if it was skipped."""
        self.comm.check_process()
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
            last = self.finish()  # with several models, one model's unfinished exchanges could meet another's
            self.times.exposed += last.exposed
            self.times.update += last.update
        self._begin()
        if self.on_step is not None:
            self.on_step()
        return committed

    def _times(self, exposed: float, update: float) -> StepTimes:
        spent = self.duty.take_spent()
        in_forward = spent.waited + spent.updated - spent.in_backward
        return StepTimes(exposed + spent.waited, update + spent.updated, in_forward, spent.in_backward)

    def finish(self) -> StepTimes:
        """Complete the last step if the schedule crosses it, so that parameters may be read; return its times.

        Saving, loading and running the model call this by themselves. Between backward and step(), it exchanges the
        gradients that have started to leave, and step() updates.
        """
        self.duty.finish()
        return self._times(0.0, 0.0)

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that are exchanged: those that required gradients at wrap."""
        return [parameter for _, parameter in self._named]

    @property
    def under_way(self) -> bool:
        """Return whether a step has sent gradients and its exchange is not finished."""
        return self.duty.under_way

    def defer(self) -> None:
        """From now on, exchange only inside step(), and finish the exchange before it returns."""
        self.finish()
        self._defers = True

    def synchronize(self) -> None:
        """Set p.grad to the mean gradient in memory of this rank, so that it can be read or changed before step()."""
        if self._micro + 1 < self.accumulate:
            raise WrongCommand(
                "synchronize() while accumulating",
                why=f"backward {self._micro + 1} of {self.accumulate} is not the last",
                remedy="call it before the last step() of an update",
            )
        self._ensure_begun()
        self.duty.synchronize()

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss to call backward on: scaled for fp16, otherwise unchanged."""
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    def _begin(self) -> None:
        view = self._presence.begin()
        if self._view is None or view.generation != self._view.generation:
            self._enter(view)
        self._micro, self._begun = 0, True
        self.duty.begin()

    def _ensure_begun(self) -> None:
        if not self._begun:
            micro = self._micro
            self._begin()
            self._micro = micro

    def _on_grad(self, parameter: Tensor) -> None:
        """Pass on the gradient of one parameter when autograd has finished it, except while accumulating."""
        self.comm.check_process()
        if self._micro + 1 < self.accumulate:
            return
        if self._defers:
            self.duty.on_held(parameter)
            return
        self._ensure_begun()
        self.duty.on_grad(parameter)

    def _check_exchanged(self) -> None:
        """Raise if the optimizer updates a parameter that is not exchanged: one that was frozen or missing at wrap."""
        updated = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not updated <= self._known:
            check_added([name for name, p in self.model.named_parameters() if id(p) in updated - self._known])
            check_known(self.model, self.optimizer)
        check_thawed([name for name, p in self._frozen if p.requires_grad and id(p) in updated])

    def _step_with(self, closure: Callable[[], Tensor]) -> bool:
        """Step with an optimizer that evaluates the model again (LBFGS): exchange each one and average its loss."""
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
        """Return whether ranks may hold different parameters between steps."""
        return not self.axes.rule.same_result

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the mean over ranks of BatchNorm statistics inside the with-block, for evaluation and checkpoints."""
        self.finish()
        with averaged_statistics(self.model, self.comm):
            yield

    def staleness(self) -> dict[str, Any]:
        """When gradients left and parameters were back, under a rule whose workers may be apart; otherwise empty."""
        return dict(self.duty.staleness())

    def record_events(self, log: list[Noted] | None) -> None:
        self._log = log
        for engine in self.engines:
            engine.log = log

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs besides model and optimizer."""
        self.finish()
        scale = None if self.loss_scale is None else self.loss_scale.state()
        return {
            "steps": self.steps,
            "loss_scale": scale,
            "engines": [engine.state() for engine in self.engines],
            "rule": dict(self.duty.state()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint. Call it between steps on all ranks, after loading model and optimizer."""
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
    """Write the end of a step to the event stream."""
    log += [Event(left, "left", step), Event(waited, "waited", step), Event(updated, "updated", step)]


def start_equal(model: nn.Module, comm: Comm) -> None:
    """Copy rank 0's parameters and buffers to all ranks, after comparing that all have the same."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shapes = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
    digest = zlib.crc32("; ".join(shapes).encode())
    comm.agree("wrap", key=f"{type(model).__name__} with {len(tensors)} tensors, checksum {digest:08x}").wait()
    with torch.no_grad():
        for text, (_, tensor) in zip(shapes, tensors, strict=True):
            comm.broadcast(tensor.data, 0, Part(text)).wait()

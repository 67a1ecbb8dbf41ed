"""Pace, the object that `paceline.wrap` returns: one training step of any strategy.

begin -> forward -> backward (hook -> rule -> dispatcher -> exchange; its end waits) -> commit -> update

`loss.backward()` and `optimizer.step()` keep the contract of torch's DDP, see docs/adr.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.comm.transport import Comm
from paceline.engine.device import Device
from paceline.errors import WrongCommand
from paceline.run.axes import Axes
from paceline.strategy.rules._context import Context
from paceline.train.bound import Bound
from paceline.train.checks import check_closure, evaluates_once
from paceline.train.evaluate import averaged_statistics
from paceline.train.holding import Holding
from paceline.train.metrics import LogsMetrics
from paceline.train.overflow import overflowed, take_part
from paceline.train.passes import Passes
from paceline.train.saving import check_own, check_vectors, load, save
from paceline.train.scaling import LossScale
from paceline.train.takeover import Takeover
from paceline.train.times import StepTimes, note_step
from paceline.types import Noted
from paceline.workload.profile import StepProfile
from paceline.workload.recipe import make_optimizer


class Pace(LogsMetrics, Bound):
    """A model and an optimizer, trained together with the other ranks.

    accumulate         backward calls per update; call step() after each, every k-th call updates
    clip_norm          largest global norm of the mean gradient
    loss_scale         for fp16: scale the loss with scaled(loss) before backward
    private_gradients  give every rank its own memory for the mean gradient, even on one host
    profile            layer times for schedules that need them; measured in the first steps by default
    """

    note = ""  # only references have one
    buckets: tuple[int, ...] = ()  # only DDP has them

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
        passes: Passes | None = None,
    ) -> None:
        super().__init__(model, optimizer, comm=comm, axes=axes, device=device, clock=clock)
        self.accumulate, self.loss_scale = accumulate, loss_scale
        self.times, self.steps, self._micro = StepTimes(), 0, 0
        self._log: list[Noted] | None = None
        self.on_step: Callable[[], None] | None = None
        self.share: Callable[[], float | None] | None = None  # this rank's fraction of a step's samples; None: equal
        self._defers, self.closed = False, False
        self._holding = Holding(self.trained, self._local_weight)
        self._left = self._waited = 0.0  # when backward had sent its gradients, and when they were back
        self._takeover = Takeover(optimizer, self._optimizer_step)
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
                run_step=self._takeover.run,
                make_optimizer=make_optimizer,
            )
        )
        self._planning = self._plans(profile) if axes.schedule.measures and self.duty.averages_gradients else None
        self._passes = passes or Passes()
        if self.duty.waits_in_backward:
            self._passes.add(self)
        self._own_gradients = not self.duty.averages_gradients and self.duty.refusal is None
        for holder in (self, optimizer) if self._own_gradients else ():
            take_part(holder)
        self._hooks += [p.register_post_accumulate_grad_hook(self._on_grad) for _, p in self._named]

    def _weight(self) -> float:
        """Return the factor of this rank's gradient in the mean of all samples of a step."""
        share = None if self.share is None or self._holding.weighed else self.share()
        return 1.0 / (self.comm.size * self.accumulate) if share is None else share / self.accumulate

    def _local_weight(self) -> float:
        """Return the weight of this rank's gradient, relative to an equal part of the samples."""
        share = None if self.share is None else self.share()
        factor = 1.0 if share is None else share * self.comm.size
        return 1.0 if abs(factor - 1.0) < 1e-9 else factor  # n times 1/n may be off by one bit

    @property
    def steps_to_plan(self) -> int:
        """Return an estimate of the steps until the plan is final; 0 once it is."""
        return 0 if self._planning is None else self._planning.left

    # the step -----------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Update, and forget gradients. Return True if the step was committed, False while accumulating or if skipped.

        `optimizer.step()` does the same, but leaves gradients until `zero_grad`.
        """
        if closure is not None:
            self._step_with(closure, fresh=True)
            return True
        committed = self._step()
        if self._micro == 0:
            self.duty.release()
        return committed

    def _step(self) -> bool:
        self.comm.check_process()
        if self._own_gradients and overflowed([self, self.optimizer], self._agrees):
            return False
        self._micro += 1
        if self._micro < self.accumulate:
            return False
        self._check_exchanged()
        self._ensure_begun()
        began = self._clock()
        if self.duty.waits_in_backward and not self.duty.exchanged:
            self._end_in_step()
            left = began
        else:
            self.duty.leave()
            left = self._clock()
        self.duty.wait()
        waited = self._clock()
        ended, self._left = (self._left, self._waited) if self._left else (left, waited), 0.0
        committed = self._presence.commit(self.duty.sound())
        if committed:
            self.duty.update()
            self.steps += 1
            if self._planning is not None:
                self.duty.keep()
                self._planning = None if self._planning.stepped() else self._planning
        self._holding.left()
        updated = self._clock()
        self.times = self._times(waited - left, left - began + updated - waited)
        if self._log is not None:
            note_step(self._log, self.steps - committed, *ended, updated)
        if self._defers:
            last = self.finish()  # with several models, one model's unfinished exchanges could meet another's
            self.times.exposed += last.exposed
            self.times.update += last.update
        if self._late:
            self._micro, self._begun = 0, False
        else:
            self._begin()
        if self.on_step is not None:
            self.on_step()
        return committed

    def _times(self, exposed: float, update: float) -> StepTimes:
        spent = self.duty.take_spent()
        in_forward = spent.waited + spent.updated - spent.in_backward
        return StepTimes(exposed + spent.waited, update + spent.updated, in_forward, spent.in_backward)

    def _optimizer_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make a step. Called instead of optimizer.step(). Unlike step(), it keeps gradients until zero_grad."""
        if self.duty.refusal is not None:
            raise self.duty.refusal
        return self._step() and None if closure is None else self._step_with(closure, fresh=False)

    @property
    def _agrees(self) -> Callable[[list[bool]], list[bool]] | None:
        return None if self.axes.exchange.asynchronous else self.any_rank

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the groups of the optimizer, so that GradScaler can step a Pace as well."""
        return self.optimizer.param_groups

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank inside the with-block. The next backward after it exchanges the sum."""
        with self._holding.inside():
            yield

    def _end_in_step(self) -> None:
        """Exchange gradients that no backward has exchanged. Called in step(), which measures the time itself."""
        self._passes.end_for(self)
        self.duty.take_spent()
        self._left = 0.0

    def end_backward(self) -> None:
        """Finish the exchange of a backward that has reached this model. Called when the outermost backward ends."""
        self._left = self._clock()
        self._ensure_begun()
        self.duty.end()
        self._holding.left()
        self._waited = self._clock()

    def finish(self) -> StepTimes:
        """Finish the exchange and the update of the last step, so that parameters may be read. Return their times.

        It matters only if the schedule crosses the step. Saving, loading and running the model call it automatically.
        """
        self.duty.finish()
        return self._times(0.0, 0.0)

    @property
    def under_way(self) -> bool:
        """Return whether a step has sent gradients and its exchange is not finished."""
        return self.duty.under_way

    def defer(self) -> None:
        """From now on, exchange at the end of backward or in step(), and finish the exchange there."""
        self.finish()
        self._defers = True

    def synchronize(self) -> None:
        """Set p.grad to the mean gradient. Only needed if the schedule crosses the step; else backward has done it."""
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
        if self._view is None:
            self._enter(view)
        elif view.generation != self._view.generation:
            self._enter(view)
            self.duty.release()  # gradients of a step that its group did not finish
        self._micro, self._begun = 0, True
        self.duty.begin()

    def _ensure_begun(self) -> None:
        if not self._begun:
            micro = self._micro
            self._begin()
            self._micro = micro

    def _on_grad(self, parameter: Tensor) -> None:
        """Pass a gradient that autograd has finished to the rule. While accumulating, it stays on this rank."""
        self._presence.comm.check_process()
        duty = self.duty
        if self._holding.active or self._micro + 1 < self.accumulate:
            duty.on_local(parameter)
            return
        if duty.waits_in_backward:
            self._passes.reach(self)
        if not self._begun:
            self._ensure_begun()
        if self._defers:
            duty.on_held(parameter)
        else:
            duty.on_grad(parameter)

    def _step_with(self, closure: Callable[[], Any], *, fresh: bool) -> Any:
        """Step with a closure, which an optimizer may call several times (LBFGS). Every call exchanges gradients."""
        self.comm.check_process()
        check_closure(self.accumulate, self.loss_scale)
        self._check_exchanged()
        self._ensure_begun()
        if self._own_gradients and evaluates_once(self.optimizer):
            loss = closure()
            self._step()
            if fresh:
                self.duty.release()
            return loss
        loss = self.duty.update_with(closure, fresh)
        if fresh:
            self.duty.release()
        self.steps += 1
        if self.on_step is not None:
            self.on_step()
        return loss

    # evaluation, checkpoints and the end ----------------------------------------------------------

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
        """Return when gradients left and parameters came back, if workers may be ahead of others; otherwise empty."""
        return dict(self.duty.staleness())

    def record_events(self, log: list[Noted] | None) -> None:
        self._log = log
        for engine in self.engines:
            engine.log = log

    @property
    def rank_dependent(self) -> bool:
        """Return whether state_dict() differs between ranks, so that every rank must save and load its own."""
        return self.replicas_differ or self.axes.compressor.remembers

    def save(self, folder: str | Path, **extra: Any) -> None:
        """Save model, optimizer and all other state of every rank, and the values in `extra`. All ranks call it."""
        save(self, Path(folder), extra)

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Load the last checkpoint of save() and return the values of `extra`. All ranks call it, between steps."""
        return load(self, Path(folder))

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint needs besides model and optimizer."""
        self.finish()
        scale = None if self.loss_scale is None else self.loss_scale.state()
        return {
            "rank": self.comm.rank,
            "size": self.comm.size,
            "rank_dependent": self.rank_dependent,
            "steps": self.steps,
            "loss_scale": scale,
            "engines": [engine.state() for engine in self.engines],
            "rule": dict(self.duty.state()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint. Call it between steps on all ranks, after loading model and optimizer."""
        if self._view is not None:
            check_own(state, self.comm.rank, self.comm.size)
        check_vectors(state, len(self.engines))
        self.duty.discard()
        self.steps, self._begun = state["steps"], False
        if self.loss_scale is not None and state["loss_scale"]:
            self.loss_scale.restore(state["loss_scale"])
        for engine, saved in zip(self.engines, state["engines"], strict=True):
            engine.restore(saved)
        self.duty.restore(state["rule"])

    def close(self) -> None:
        self.closed = True
        self._takeover.end()
        self._holding.close()
        self._passes.remove(self)
        self.duty.close()
        for engine in () if self.under_way else self.engines:
            engine.release()
        for hook in self._hooks:
            hook.remove()

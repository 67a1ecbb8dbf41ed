"""Connect a model and an optimizer with the engines that exchange their vectors, and with a group of ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from paceline.comm.transport import Comm
from paceline.engine.crossing import engine_of
from paceline.engine.device import CpuDevice, Device
from paceline.engine.engine import Engine
from paceline.engine.gates import Gates, for_one
from paceline.engine.way import way_of
from paceline.protocols import Duty, Exchange
from paceline.run.axes import Axes
from paceline.run.compose.candidates import tried
from paceline.strategy.exchanges.hierarchical import NodesChannel
from paceline.strategy.exchanges.neighbor import NeighborChannel
from paceline.train.checks import check_added, check_known, check_not_compiled, check_thawed, trainable
from paceline.train.planning import Planning
from paceline.train.start import start_equal
from paceline.train.step_weights import StepWeights, WeightsOfStep, check_settable
from paceline.train.watch import Watch
from paceline.train.weights import Weights
from paceline.types import Lane, Slot, View
from paceline.workload.profile import StepProfile


class Bound:
    """Base class of Pace: holds the model, the optimizer, the engines and the group. Pace itself makes the steps."""

    duty: Duty

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        comm: Comm,
        axes: Axes,
        device: Device | None,
        clock: Callable[[], float],
    ) -> None:
        self.model, self.optimizer, self.axes, self._clock = model, optimizer, axes, clock
        self.engines: list[Engine] = []
        self._hooks: list[Any] = []
        self._device, self._named = device or CpuDevice(), trainable(model)
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._known = {id(p) for _, p in [*self._named, *self._frozen]}
        check_known(model, optimizer)
        axes.compressor.check([Slot(name, p.numel(), tuple(p.shape)) for name, p in self._named])
        self._way = way_of(axes.schedule)
        self._presence = axes.membership.join(comm)
        self._view: View | None = None  # until this rank has entered a group
        # The first step begins with its first gradient, so that a checkpoint may still be loaded after wrap; with
        # `_late` every step does, so that weights may still be set.
        self._begun = self._late = False
        if not axes.membership.elastic:
            start_equal(model, comm)
            self._enter(self._presence.begin())

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return the parameters that are exchanged: those that required gradients when the model was wrapped."""
        return [parameter for _, parameter in self._named]

    def _open_lane(
        self, lane: Lane, exchange: Exchange | None = None, positions: Sequence[int] | None = None
    ) -> Engine:
        """Create the engine that exchanges one vector over all parameters, or over those at `positions`."""
        exchange = exchange or self.axes.exchange
        named = self._named if positions is None else [self._named[position] for position in positions]
        engine = engine_of(self._way)(
            [name for name, _ in named],
            [parameter for _, parameter in named],
            lane=lane,
            exchange=exchange,
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
        """Enter the group of a view with every engine. Unfinished exchanges of the previous group are dropped."""
        self._view = view
        for engine in self.engines:
            engine.abandon()
            engine.enter(self.comm, view)

    def set_weights(
        self,
        weights: WeightsOfStep | None = None,
        *,
        self_weight: float | None = None,
        src_weights: Weights = None,
        dst_weights: Weights = None,
    ) -> None:
        """Mix with these neighbors and weights from the next step on; without arguments, by the topology again.

        y = self_weight x + sum_j src_weights[j] dst_weights_of_j[me] x_j. All ranks call it, between steps. `weights`
        is a function of the number of the exchange, from 0, that returns a dict of the three. Ranks that average in
        nodes, with hierarchical(neighbor(T)), name nodes.
        """
        fixed = {"self_weight": self_weight, "src_weights": src_weights, "dst_weights": dst_weights}
        names_any = any(value is not None for value in fixed.values())
        check_settable(self.axes.exchange, twice=weights is not None and names_any)
        written = weights or (fixed if names_any else None)
        if self._begun:  # exchanges that were started for the next step used the old weights
            self.duty.discard()
            self._begun = False
        rows = None if written is None else StepWeights(self.comm, self.axes, written)
        self._late = written is fixed
        for channel in (engine.channel for engine in self.engines):
            if isinstance(channel, NeighborChannel | NodesChannel):
                channel.weights = rows

    def _open_gates(self, arrive: Callable[[Sequence[int]], None]) -> Gates:
        """Make forward wait for its parameters from now on. Saving and loading first finish the last step."""
        check_not_compiled(self.model)
        settle = for_one(self.model, lambda *_: self.duty.finish(), lambda: self.duty.finish())
        self._hooks += [
            self.model.register_state_dict_pre_hook(settle),
            self.model.register_load_state_dict_pre_hook(settle),
            self.optimizer.register_state_dict_pre_hook(lambda *_: self.duty.finish()),
            self.optimizer.register_load_state_dict_pre_hook(lambda *_: self.duty.finish()),
        ]
        return Gates(self.model, [parameter for _, parameter in self._named], arrive)

    def _on_forward(self, act: Callable[[], None]) -> None:
        """Call `act` before each layer with parameters runs, so that exchanges advance during forward."""
        for module in self.model.modules():
            if next(module.parameters(recurse=False), None) is not None:
                self._hooks.append(module.register_forward_pre_hook(for_one(module, lambda *_: act())))

    def watch(self) -> Watch:
        """Start measuring layer times. Only rule grad supports this."""
        return Watch(self.model, self.engines[0], [parameter for _, parameter in self._named], self._clock)

    def _plans(self, profile: StepProfile | None) -> Planning:
        parameters = [parameter for _, parameter in self._named]
        return Planning(
            self.model,
            self.engines[0],
            parameters,
            clock=self._clock,
            settle=self.duty.finish,
            candidates=tried(self.axes),
            profile=profile,
        )

    def any_rank(self, marks: list[bool]) -> list[bool]:
        """Return for each mark whether any rank has set it. Collective."""
        own = torch.tensor(marks, dtype=torch.float32, device=self._named[0][1].device)
        total = torch.empty_like(own)
        self.comm.all_sum(own, total, "models that backward reached").wait()
        return [bool(count) for count in total.tolist()]

    def _check_exchanged(self) -> None:
        """Raise if the optimizer updates a parameter that is not exchanged: it was frozen or missing at wrap."""
        updated = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        if not updated <= self._known:
            check_added([name for name, p in self.model.named_parameters() if id(p) in updated - self._known])
            check_known(self.model, self.optimizer)
        check_thawed([name for name, p in self._frozen if p.requires_grad and id(p) in updated])

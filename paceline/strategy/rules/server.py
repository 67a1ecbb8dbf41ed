"""Parameters live on servers: workers push gradients, servers run the optimizer, workers pull parameters.

    server                      once per step, on the mean gradient of all workers
    server(staleness=3)         on every push as it arrives; no worker gets more than 3 steps ahead of the slowest
    server(staleness=async)     on every push as it arrives, no bound

Without a common step a push counts 1/n, so that n pushes move as far as one step on the mean. The optimizer is
built on the servers from its name and settings, which travel as text; it must work element by element.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.comm.transport import Comm, Work
from paceline.errors import BadMember, WorkloadError, WrongCommand
from paceline.protocols import Codec
from paceline.strategy.exchanges._placement import Placer, shares
from paceline.strategy.exchanges.ps import service_of
from paceline.strategy.exchanges.traits import ExchangeTraits
from paceline.strategy.rules._context import Context
from paceline.strategy.rules._withheld import Withholding
from paceline.strategy.rules.traits import RuleTraits
from paceline.types import Chunk, Cluster, Lane, Spent, Unit, View

if TYPE_CHECKING:
    from torch import Tensor

# Optimizers of torch whose update of an element depends on this element's gradient and state alone.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
LANE = Lane("gradient", needs_consensus=True, lossy_ok=True)
OUTSIDE = -1  # autograd gives this number if no backward runs


@dataclass(frozen=True)
class Server(RuleTraits):
    staleness: str = "0"

    name: ClassVar[str] = "server"
    lanes: ClassVar[tuple[Lane, ...]] = (LANE,)
    leaves: ClassVar[str] = "backward"
    needs: ClassVar[str] = "servers"

    def __post_init__(self) -> None:
        if self.staleness != "async" and not self.staleness.isdecimal():
            raise BadMember(f"{self}", why="staleness is a number of steps, or async", remedy="server(staleness=3)")

    @property
    def same_result(self) -> bool:
        return self.bound == 0

    @property
    def bound(self) -> int | None:
        """The steps that a worker may be ahead of the slowest; None means no bound."""
        return None if self.staleness == "async" else int(self.staleness)

    def bind(self, context: Context) -> ServerDuty:
        return ServerDuty(context, self)


class Pushes(ExchangeTraits):
    """The exchange of this rule: chunks of gradients leave, chunks of parameters come back."""

    name: ClassVar[str] = "pushes"
    shares_results: ClassVar[bool] = True
    one_call: ClassVar[bool] = True
    servers: int = 0

    def __init__(self, exchange: Any, bound: int | None) -> None:
        self._exchange, self._bound = exchange, bound
        self.servers = exchange.servers

    def check(self, cluster: Cluster) -> None:
        self._exchange.check(cluster)

    def join(self, comm: Comm, view: View, lane: Lane) -> PushChannel:
        service = service_of(self._exchange, comm)
        return PushChannel(service if self._bound == 0 else service.join_crew())


class PushChannel:
    def __init__(self, service: Any) -> None:
        self.memory = service
        self.lane = service.open_lane(colocated=False)
        self._placer = Placer(shares(service.size, service.servers, colocated=False))

    def start(self, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor, codec: Codec | None) -> Work:
        return self.push("update", unit, chunk, src, dst)

    def push(self, word: str, unit: Unit, chunk: Chunk, src: Tensor, dst: Tensor) -> Work:
        pieces = self._placer.pieces(chunk.index, src.numel(), src.itemsize)
        work: Work = self.memory.sum_by(src, dst, pieces, word=word, lane=self.lane, chunk=chunk.index, key=unit)
        return work

    def state(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


class ServerDuty:
    """Moves gradients into the arena; the results are parameters."""

    averages_gradients = False  # the results are parameters
    waits_in_backward = exchanged = False
    under_way = False  # servers do not wait for workers that have left

    def __init__(self, context: Context, rule: Server) -> None:
        import torch

        self._torch, self.context, self.bound = torch, context, rule.bound
        check_optimizer(context.optimizer)
        self._pushes = Pushes(context.exchange, rule.bound)
        self.engine = context.open_lane(LANE, self._pushes)
        self._channel: Any = self.engine.channel
        self.engine.keeps_step = False  # workers may be at different steps; the servers order their pushes
        self._channel.memory.tell("ready")
        self._parameters = [context.parameters[k] for k in self.engine.order]
        self._slots = {id(parameter): slot for slot, parameter in enumerate(self._parameters)}
        self._settings: Any = None
        self._placed = False
        self._round = 0  # how often the servers' parameters were replaced
        self.steps = 0
        self.refusal = _refused("optimizer.step()")
        self._withholding = Withholding(context.parameters, self._refuse)
        # When the last gradient of each step left and when its parameters were back, for the record.
        self.pushed: list[float] = []
        self.pulled: list[float] = []

    def _refuse(self, operation: str) -> Exception:
        if self._torch._C._current_graph_task_id() != OUTSIDE:  # autograd adds another gradient
            return self.context.twice("a parameter", self.steps)
        return _refused(f"{operation} on p.grad")

    def begin(self) -> None:
        self._begun = False

    def _begin(self) -> None:
        """Begin a step with its first gradient, so that changes by a scheduler after the last step apply to it."""
        if self._placed:
            self._check_untouched()
        self._begun = True
        self.factor = self.context.factor()
        if self._placed or self.bound == 0 or self._round == 0:
            self._bring()
        else:
            self._bring_in_turn()
        self.engine.begin(self.steps)

    def _check_untouched(self) -> None:
        """Refuse parameters that were changed since they came from the servers, which would undo the change."""
        equal, close = self._torch.equal, self._torch.allclose
        for slot, (parameter, result) in enumerate(zip(self._parameters, self._results(), strict=True)):
            own = parameter.detach()
            if not equal(own, result) and not close(own, result, rtol=0, atol=0, equal_nan=True):
                raise WorkloadError(
                    f"{self.engine.name_of(slot)} was changed after step {self.steps}, with rule server",
                    why="parameters live on servers, which have not seen the change",
                    remedy="pace.load_state_dict(pace.state_dict()) after it, on all ranks: that is told to servers, "
                    "whose optimizers begin anew; or --rule grad",
                )

    def _results(self) -> list[Tensor]:
        return [view for arena in self.engine.arenas for view in arena.result_views]

    def _bring(self) -> None:
        """Send settings if they are new, and parameters if the servers do not have them."""
        self._describe()
        if not self._placed:
            self._place()

    def _bring_in_turn(self) -> None:
        """Replace the servers' parameters if workers are at different steps: after all pushes, rank 0 first."""
        comm = self.context.comm
        comm.barrier()
        if comm.rank == 0:
            self._bring()
        comm.barrier()
        if comm.rank != 0:
            self._bring()

    def _describe(self) -> None:
        """Send the optimizer's settings to the servers: rank 0's for all, or each rank's own when they change."""
        optimizer = self.context.optimizer
        settings = {
            "lane": self._channel.lane,
            "sources": [self._channel.memory.number_of(arena.source) for arena in self.engine.arenas],
            "optimizer": type(optimizer).__name__,
            "groups": [_plain(group) for group in optimizer.param_groups],
            "bound": self.bound,
            "round": self._round,
            "chunks": len(self.engine.chunks),
            "segments": self._segments(),
        }
        if self.bound == 0 or settings != self._settings:
            self._settings = settings
            self._channel.memory.tell_text(settings)

    def _segments(self) -> list[list[list[int]]]:
        """Return for every arena the ranges of slots that are in one parameter group: start, stop, group."""
        groups = {id(p): k for k, g in enumerate(self.context.optimizer.param_groups) for p in g["params"]}
        segments, slot = [], 0
        for arena in self.engine.arenas:
            ranges: list[list[int]] = []
            for start, stop in pairwise(arena.layout.offsets):
                group = groups.get(id(self._parameters[slot]), -1)
                if ranges and ranges[-1][2] == group:
                    ranges[-1][1] = stop
                else:
                    ranges.append([start, stop, group])
                slot += 1
            segments.append(ranges)
        return segments

    def _place(self) -> None:
        """Move the parameters to the servers."""
        with self._torch.no_grad():
            for slot, parameter in enumerate(self._parameters):
                self.engine.source(slot).copy_(parameter)
            for chunk in self.engine.chunks:
                arena, part = self.engine.arenas[chunk.arena], slice(chunk.start, chunk.stop)
                unit = Unit(self.steps, chunk.index)
                self._channel.push("begin", unit, chunk, arena.source[part], arena.result[part]).wait()
        self._placed = True

    def on_held(self, parameter: Tensor) -> None:
        """Hide a gradient until it leaves in step(); several backwards add up."""
        self._withholding.hide(parameter)

    def on_local(self, parameter: Tensor) -> None:
        """Leave gradients on this rank, where they add up; they leave with the next exchange."""

    def end(self) -> None:
        """Do nothing: no exchange ends in backward."""

    def on_grad(self, parameter: Tensor) -> None:
        if not self._begun:
            self._begin()
        slot, fresh = self._slots[id(parameter)], parameter.grad
        assert fresh is not None, "autograd has just filled it"
        if slot in self.engine.arrived:
            raise self.context.twice(self.engine.name_of(slot), self.steps)
        if fresh.layout != self.engine.source(slot).layout:
            fresh = fresh.to_dense()
        since = self.engine.glance()
        # Backward may have been called with create_graph.
        self._torch.mul(fresh.detach(), self.factor, out=self.engine.source(slot))
        self._withholding.withhold(parameter)
        self._offer(slot, since)

    def _offer(self, slot: int, since: float = 0.0) -> None:
        if len(self.engine.arrived) + 1 == len(self._parameters):
            self.pushed.append(self.context.clock())
        self.engine.offer(slot, since)

    def leave(self) -> None:
        """Send the remaining gradients. A parameter without a gradient gets a zero gradient."""
        if not self._begun:
            self._begin()
        self._withholding.show()
        for slot in self.engine.missing():
            if self._parameters[slot].grad is not None:  # a gradient of an earlier backward of this update
                self.on_grad(self._parameters[slot])
                continue
            self.engine.source(slot).zero_()
            self._offer(slot)

    def wait(self) -> None:
        self.engine.finish()
        self.pulled.append(self.context.clock())

    def sound(self) -> bool:
        return True

    def update(self) -> None:
        """Take over the parameters that the servers computed."""
        with self._torch.no_grad():
            for parameter, view in zip(self._parameters, self._results(), strict=True):
                parameter.copy_(view)
        # A learning-rate scheduler reads this to check that the optimizer has made a step.
        self.context.optimizer._opt_called = True  # type: ignore[attr-defined]
        self.steps += 1

    def synchronize(self) -> None:
        raise WrongCommand(
            "synchronize() with rule server", why="the mean gradient is on the servers", remedy="--rule grad"
        )

    def update_with(self, closure: Callable[[], Any], fresh: bool) -> Any:
        raise WrongCommand(
            "step(closure) with rule server", why="the optimizer is on the servers", remedy="--rule grad"
        )

    def finish(self) -> None:
        """Do nothing: a step ends with its update."""

    def close(self) -> None:
        """Remove the hooks, and drop hidden gradients."""
        self._withholding.close()

    def discard(self) -> None:
        """Do nothing: no gradient leaves before backward."""

    def keep(self) -> None:
        """Do nothing: gradients are on the servers."""

    def release(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def take_spent(self) -> Spent:
        """Return no time: nothing runs outside of step()."""
        return Spent()

    def staleness(self) -> Mapping[str, Any]:
        return {"bound": self.bound, "pushed": self.pushed, "pulled": self.pulled}

    def state(self) -> Mapping[str, Any]:
        return {"steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a state: the model's parameters replace those on the servers with the next step."""
        self._round += self._placed
        self.steps, self._placed = state["steps"], False


def _refused(what: str) -> WorkloadError:
    return WorkloadError(
        f"{what} with rule server",
        why="the mean gradient and the optimizer are on the servers",
        remedy="pace.step(), or --rule grad",
    )


def check_optimizer(optimizer: Any) -> None:
    """Refuse an optimizer of the user that servers cannot run."""
    name = type(optimizer).__name__
    if name not in ELEMENTWISE or not type(optimizer).__module__.startswith("torch.optim"):
        raise WrongCommand(
            f"rule server with {name}",
            why="servers hold pieces of tensors, so the optimizer must work element by element",
            remedy=f"one of torch.optim's {', '.join(ELEMENTWISE[:4])}, ...; or --rule grad",
        )


def _plain(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group as JSON values."""
    return {key: _number(value) for key, value in group.items() if key != "params"}


def _number(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_number(each) for each in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else float(value)


def largest_lead(pushed: Sequence[Sequence[float]], pulled: Sequence[Sequence[float]]) -> int:
    """Return the largest lead: the steps that a worker had finished minus the steps that the slowest worker had pushed.

    Times are in rising order, on one clock.
    """
    worst = 0
    for times in pulled:
        for done, moment in enumerate(times, start=1):
            slowest = min(bisect_right(others, moment) for others in pushed)
            worst = max(worst, done - slowest)
    return worst

"""Train in a group that may change between steps. With membership elastic, `paceline.wrap` returns an ElasticPace.

    enter -> shard, shard, ... -> exchange -> vote -> commit -> update
      ^                              |           |
      +------ next generation <------+-----------+   a member is lost: all commit the step, or all repeat it

A global batch is cut into virtual shards. Each member owns some shards and computes them one after another. The
samples of a step do not depend on which member computes them. Gradients, flags, and BatchNorm statistics travel as one
vector.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from paceline.comm.faults import fault
from paceline.elastic.protocol import COMMIT, LEAVE
from paceline.errors import PeerLost, WorkloadError, WrongCommand
from paceline.strategy.rules._withheld import Withholding
from paceline.train.checks import check_known, trainable
from paceline.train.handover import hand_over
from paceline.train.laps import Laps
from paceline.train.ledger import checksum_of, ledger_of
from paceline.train.metrics import MetricLog
from paceline.train.pace import StepTimes
from paceline.train.saving import load_alone, pointed_at, save_alone
from paceline.train.schedulers import restore, schedulers_of, states_of
from paceline.train.shards import ShardExchange, ShardSum
from paceline.train.takeover import Takeover

COMPARED = 100  # steps between two comparisons of the members' states
GOLDEN = 0x9E3779B97F4A7C15


class ElasticPace:
    """A model and an optimizer, trained together with the current members of the group.

    pending   whether this member has more shards of the current step after the last step()
    steps     number of committed steps, the same on all members
    """

    note = ""
    buckets: tuple[int, ...] = ()  # only DDP has them
    engines: tuple[Any, ...] = ()
    steps_to_plan = 0
    replicas_differ = False
    under_way = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        presence: Any,
        shards: int = 8,
        deterministic: bool = False,
        clip_norm: float | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model, self.optimizer, self.shards, self.deterministic = model, optimizer, shards, deterministic
        self._presence, self._clip, self._seed, self._clock = presence, clip_norm, seed, clock
        self.loss_scale, self.times, self.on_step = None, StepTimes(), None
        self.closed, self.pending, self.metrics = False, False, MetricLog()
        self._named = trainable(model)
        check_known(model, optimizer)
        if deterministic:
            torch.set_num_threads(1)  # sums inside a layer depend on the number of threads
        statistics = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        self._statistics, self._counts = statistics, [b for b in model.buffers() if not b.is_floating_point()]
        self._sizes = [p.numel() for _, p in self._named]
        self._numel = sum(self._sizes) + len(self._named) + sum(b.numel() for b in statistics)
        wide = any(t.dtype == torch.float64 for t in [*(p for _, p in self._named), *statistics])
        self._dtype = torch.float64 if wide else torch.float32
        self._exchange: ShardExchange | None = None
        self._generation = 0
        self.weight: float | None = None  # weight of the next shard; None means 1 / shards
        self._withholding = Withholding(self.trained, lambda operation: _refused(f"{operation} on p.grad"))
        self._takeover = Takeover(optimizer, self._optimizer_step)
        self._known_schedulers: list[Any] | None = None  # the schedulers of the optimizer, once they were looked up
        self._hooks = [p.register_post_accumulate_grad_hook(self._on_grad) for _, p in self._named]
        self._sum: ShardSum | None = None
        self._taken = 0
        self.laps = Laps(clock)
        self._latest: dict[Path, int] = {}  # the latest checkpoint of each folder, as this member has seen it
        self._ledger = ledger_of(os.environ, presence.member, model, optimizer)
        self._forget()

    # entering -----------------------------------------------------------------------------------

    @property
    def comm(self) -> Any:
        return self._presence.comm

    @property
    def steps(self) -> int:
        return int(self._presence.committed)

    def log(self, *, step: int | None = None, **values: Any) -> None:
        """Keep figures in this process, like `Pace.log`. The record of an elastic job does not hold them yet."""
        self.metrics.log(self.steps if step is None else step, values)

    @property
    def trained(self) -> list[nn.Parameter]:
        return [parameter for _, parameter in self._named]

    def enter(self) -> None:
        """Enter the current group unless this member is in it already. A new member gets the state of rank 0."""
        self._schedulers()
        while True:
            view = self._presence.begin()
            if view.generation == self._generation:
                return
            try:
                self._prepare()
            except PeerLost as problem:
                self._presence.suspect(problem)
                self._presence.leave()
                continue
            self._generation = view.generation
            self._forget()
            self.laps.lap("recover")
            return

    def _prepare(self) -> None:
        group = self._presence.group
        self._exchange = ShardExchange(
            self.comm, self._numel, self._dtype, self._presence.shares, deterministic=self.deterministic
        )
        if group.fresh:
            self._welcome(self._presence.member in group.fresh)
        self._presence.committed, self._presence.holds = group.steps, True

    def _welcome(self, fresh: bool) -> None:
        """Give the state of rank 0 to the new members of the group."""
        state = hand_over(self.comm, self._state() if self.comm.rank == 0 else None, fresh=fresh)
        if state is not None:
            self._restore(state, self._schedulers())
            self._presence.committed = self._presence.group.steps  # if all others die now, training goes on from here

    def _state(self) -> dict[str, Any]:
        state = {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}
        return {**state, "schedulers": states_of(self._schedulers())}

    def _restore(self, state: dict[str, Any], schedulers: Sequence[Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        restore(schedulers, state["schedulers"])

    def _schedulers(self) -> list[Any]:
        """Return the schedulers of the optimizer. They are looked up once, before this member enters a group."""
        if self._known_schedulers is None:
            self._known_schedulers = schedulers_of(self.optimizer)
        return self._known_schedulers

    # the step -----------------------------------------------------------------------------------

    def _on_grad(self, parameter: Tensor) -> None:
        """Hide the gradient of a shard from p.grad, because the mean is known only when the step is committed."""
        self._presence.beat()
        self._withholding.hide(parameter)

    def _optimizer_step(self, *_: Any, **__: Any) -> Any:
        raise _refused("optimizer.step()")

    @property
    def shard(self) -> int:
        """Return the shard that this member computes next. Enters a group first."""
        self.enter()
        mine: range = self._presence.shards
        return mine[self._taken]

    def sow(self, shard: int) -> None:
        """In deterministic mode, seed torch's generator with step and shard, because dropout uses it."""
        if self.deterministic:
            torch.manual_seed((self._seed * GOLDEN + self.steps * self.shards + shard) % 2**63)

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Take the gradients of one shard. After the last shard, exchange. Return True if the step was committed."""
        if closure is not None:
            raise WrongCommand("step(closure) with membership elastic", why="an evaluation cannot be taken back")
        began = self._clock()
        self.laps.lap("compute")
        self.enter()
        if self._presence.ended():
            self._abandon()
            return False
        mine: range = self._presence.shards
        if self._sum is None:
            self._sum = ShardSum(mine, deterministic=self.deterministic)
        weight = 1.0 / self.shards if self.weight is None else self.weight
        self._sum.add(self._collect(weight))
        self._taken, self.weight = self._taken + 1, None
        self._presence.taken = self._taken
        if self._ledger is not None:
            self._ledger.shard(self.steps, self._generation, mine[self._taken - 1])
        self.laps.lap("pack")
        self.pending = self._taken < len(mine)
        if self.pending:
            return False
        return self._complete(began)

    def _abandon(self) -> None:
        """Leave a group that has lost a member, without the shards of this step. They are dealt again."""
        self._collect(0.0)
        self._presence.taken = self._taken + 1
        self._presence.leave()
        self._forget()
        self.laps.lap("recover")

    def _collect(self, weight: float) -> Tensor:
        """Return gradients, flags and statistics of a shard as one vector, and restore the earlier statistics."""
        vector = torch.zeros(self._numel, dtype=self._dtype)
        at, flags = 0, sum(self._sizes)
        self._withholding.show()
        for slot, ((_, parameter), numel) in enumerate(zip(self._named, self._sizes, strict=True)):
            if parameter.grad is not None:
                fresh = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
                torch.mul(fresh.detach().reshape(-1), weight, out=vector[at : at + numel])
                vector[flags + slot] = 1.0
            parameter.grad = None
            at += numel
        at = flags + len(self._named)
        for buffer, kept in zip(self._statistics, self._kept, strict=True):
            torch.mul(buffer.reshape(-1), weight, out=vector[at : at + buffer.numel()])
            buffer.copy_(kept)
            at += buffer.numel()
        for place, (buffer, before) in enumerate(zip(self._counts, self._kept_counts, strict=True)):
            self._moved[place] = buffer - before
            buffer.copy_(before)
        return vector

    def _complete(self, began: float) -> bool:
        assert self._sum is not None
        assert self._exchange is not None
        verdict, changes = LEAVE, False
        try:
            fault("before send")
            self._exchange.sum(self._sum.rows, f"step {self.steps}")
            self.laps.lap("wire")
            fault("after the result")
            verdict = self._presence.vote(True, self._fingerprint())
            self.laps.lap("vote")
            fault("after the vote")
        except PeerLost as problem:
            self._presence.suspect(problem)
        waited = self._clock()
        if verdict == LEAVE:
            commits = self._presence.leave()
            self.laps.lap("recover")
            if commits:
                self._update(self._exchange)
                self.laps.lap("update")
                self._presence.count(self.laps.take())
        else:
            commits = verdict == COMMIT
            if commits:
                self._update(self._exchange)
                fault("after the update")
            self.laps.lap("update")
            changes = self._presence.settle(verdict, self.laps.take() if commits else None)
        if commits and self._ledger is not None:
            self._ledger.commit(self.steps - 1, self._generation)
        if changes:
            self._presence.leave(orderly=True)
        self._forget()
        self.times = StepTimes(exposed=waited - began, update=self._clock() - waited)
        if self.on_step is not None:
            self.on_step()
        return commits

    def _fingerprint(self) -> int:
        """Return 32 bits that stand for the whole state, every COMPARED steps; in other steps 0."""
        if self.steps % COMPARED or not self.steps:
            return 0
        return checksum_of(self._state())

    def _update(self, exchange: ShardExchange) -> None:
        """Run the optimizer on the sum of the exchange, and set the BatchNorm statistics."""
        total = exchange.total()
        flags = total[sum(self._sizes) :][: len(self._named)].tolist()
        at = 0
        for (_, parameter), numel, count in zip(self._named, self._sizes, flags, strict=True):
            view = total[at : at + numel].view(parameter.shape)
            parameter.grad = view.to(parameter.dtype) if count > 0 else None
            at += numel
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self._clip)
        self._takeover.run()
        for _, parameter in self._named:
            parameter.grad = None
        at = sum(self._sizes) + len(self._named)
        with torch.no_grad():
            for buffer in self._statistics:
                buffer.copy_(total[at : at + buffer.numel()].view(buffer.shape))
                at += buffer.numel()
            for buffer, moved in zip(self._counts, self._moved, strict=True):
                buffer.add_(moved)

    def _forget(self) -> None:
        """Begin a step, or repeat it from the start: forget the shards that were taken."""
        self._sum = None
        self._taken, self.pending, self.weight = 0, False, None
        self._presence.taken = 0
        self._kept = [buffer.detach().clone() for buffer in self._statistics]
        self._kept_counts = [buffer.detach().clone() for buffer in self._counts]
        self._moved = [torch.zeros_like(buffer) for buffer in self._counts]

    # evaluation, events and checkpoints -----------------------------------------------------------

    def scaled(self, loss: Tensor) -> Tensor:
        return loss

    def synchronize(self) -> None:
        raise WrongCommand("synchronize() with membership elastic", why="gradients are known when a step is committed")

    def finish(self) -> StepTimes:
        """Return zero times, because nothing is under way between steps."""
        return StepTimes()

    def defer(self) -> None:
        raise WrongCommand("a second wrap() with membership elastic", why="one model is committed at a time")

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Do nothing, because every commit averages the statistics."""
        yield

    def staleness(self) -> dict[str, Any]:
        return {}

    def record_events(self, log: Any) -> None:
        """Do nothing, because elastic steps record no events."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint. Call it after loading model and optimizer, and before the first batch."""
        if self._presence.inside:
            raise WrongCommand("load_state_dict() in a running group", remedy="load before the first batch")
        self._presence.committed = int(state["steps"])

    def phase(self) -> contextlib.AbstractContextManager[None]:
        """Let other members wait for this worker without a time limit inside the with-block, as in an evaluation."""
        return cast("contextlib.AbstractContextManager[None]", self._presence.away())

    def fetching(self) -> contextlib.AbstractContextManager[None]:
        """Let other members wait up to a minute inside the with-block, in which this worker waits for its data."""
        return cast("contextlib.AbstractContextManager[None]", self._presence.fetching())

    def save(self, folder: str | Path, **extra: Any) -> bool:
        """Save a checkpoint after a committed step, with the values in `extra`. Return whether this worker wrote it.

        Rank 0 writes it for all members. If it cannot, the previous checkpoint stays, and training continues."""
        place, there = Path(folder), pointed_at(Path(folder))
        known = self._latest.setdefault(place, there)
        if there <= self.steps:
            self._latest[place] = known = there
        if not self._presence.first:
            return False
        with self.phase():
            state = {"pace": self.state_dict(), **self._state(), "extra": extra}
            problem = save_alone(state, self.steps, place, known)
        if problem:
            self._presence.note("no checkpoint")
        else:
            self._latest[place] = self.steps
        return not problem

    def load(self, folder: str | Path) -> dict[str, Any]:
        """Load the last checkpoint and return the values of `extra`. Call it before the first batch."""
        state = load_alone(Path(folder))
        self._latest[Path(folder)] = int(state["pace"]["steps"])
        self.load_state_dict(state["pace"])
        kept = state.get("schedulers", [])
        there = schedulers_of(self.optimizer)
        # A script may make its schedulers after this call, and give them their state itself.
        same = len(kept) == len(there)
        self._restore({**state, "schedulers": kept if same else []}, there if same else [])
        self._forget()
        return dict(state["extra"])

    def close(self) -> None:
        self.closed = True
        self._takeover.end()
        self._withholding.close()
        for hook in self._hooks:
            hook.remove()


def _refused(what: str) -> WorkloadError:
    return WorkloadError(
        f"{what} with membership elastic",
        why="the mean gradient is known when a step is committed, and a step that a lost member was in is made again",
        remedy="pace.step(), with clip_norm= in wrap as you need; or membership fixed",
    )

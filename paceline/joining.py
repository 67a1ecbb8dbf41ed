"""The two calls of a user's own loop: `join` the others, `wrap` model and optimizer.

    worker = paceline.join()
    pace = paceline.wrap(model, optimizer, strategy="allreduce")
    for x, y in worker.batches(dataset):
        criterion(model(x), y).backward()
        pace.step()

Works alone, under `paceline run`, and under torchrun.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import torch

from paceline.bench.profile import read as read_profile
from paceline.comm.connect import connect, position
from paceline.comm.service import Attendant
from paceline.compose import Machine, compose
from paceline.engine.device import Device, find
from paceline.errors import WrongCommand
from paceline.run import CHOSEN, Run
from paceline.sources.loader import shares, told_epoch
from paceline.train.pace import Pace
from paceline.train.recipe import written
from paceline.train.scaling import LossScale
from paceline.train.serve import serve
from paceline.types import View

MEASURE = "PACELINE_MEASURE"  # set by a race, which wants the updates of a script timed

_current: ContextVar[Worker | None] = ContextVar("paceline worker", default=None)
_turns = count()  # of join in this process: what one leaves where ranks meet is not for the next


class Worker:
    """This process among the others."""

    def __init__(self, comm: Any, device: Device) -> None:
        self._comm, self.device = comm, device
        self.rank, self.size = comm.rank, comm.size
        self._paces: list[Pace] = []
        self._open = True
        self.windows: dict[str, Any] = {}  # by name, those that are not freed
        self.windows_made = 0
        self.levels: dict[str, tuple[Any, Any]] = {}  # of calls in levels, by topology: the channel and its last work
        self.at_close: Callable[[], None] | None = None
        self.dealt = (0, 0)  # batches and samples that `batches` gave to this rank
        self._epochs: dict[int, tuple[Any, int]] = {}  # the data is kept, so that its id stays its own

    @property
    def comm(self) -> Any:
        """What moves bytes. All ranks must call it in one order, so a step that is still under way ends first."""
        for pace in self._paces:
            pace.finish()
        return self._comm

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which prints and saves."""
        return bool(self.rank == 0)

    def batches(
        self, data: Any, *, batch_size: int | None = None, epochs: int = 1, epoch: int | None = None, seed: int = 0
    ) -> Iterator[Any]:
        """This rank's share of a dataset, a DataLoader or any iterable of batches, on the device.

        `batch_size` is per worker. With a dataset or a DataLoader over one, every sample is used by one rank:
        a fixed seed and global batch give one sequence of samples whatever the number of workers. Of any other
        iterable, rank r takes batch r of every `size` batches. Ragged ends are dropped, so that ranks stay level.
        `epoch` is the first epoch, which decides the order; without it a call goes on where the last one ended.
        """
        view = View(self.rank, self.size, self._comm.placement)
        first = self._next_epoch(data) if epoch is None else epoch
        self._epochs[id(data)] = (data, first + epochs)
        for batch in shares(data, view, batch_size=batch_size, epochs=range(first, first + epochs), seed=seed):
            self.dealt = (self.dealt[0] + 1, self.dealt[1] + _count(batch))
            yield self.device.place(batch)

    def _next_epoch(self, data: Any) -> int:
        """After the last one of these data; or what somebody has told their DistributedSampler since."""
        after, told = self._epochs.get(id(data), (data, 0))[1], told_epoch(data)
        return after if told is None or told == after - 1 else told

    def check_apart(self, model: torch.nn.Module) -> None:
        """A parameter that is trained belongs to one wrapped model."""
        self._paces = [pace for pace in self._paces if not pace.closed]
        taken = {id(parameter) for pace in self._paces for parameter in pace.trained}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) in taken:
                raise WrongCommand(
                    f"wrap of {type(model).__name__}",
                    why=f"its {name} is wrapped already, and two would exchange one gradient",
                    remedy="close() what the first wrap gave, or one optimizer with several parameter groups",
                )

    def add(self, pace: Pace) -> None:
        """With several models, which of them backward reaches first may differ among ranks: all exchange in step()."""
        self._paces.append(pace)
        for each in self._paces if len(self._paces) > 1 else ():
            each.defer()

    def close(self, failure: str = "") -> None:
        if self._open:
            self._open = False
            try:
                for pace in () if failure else self._paces:
                    if not pace.under_way:  # others may never come to the end of a step that is given up
                        pace.finish()
                if self.at_close is not None and not failure:
                    self.at_close()
            finally:
                self._comm.close(failure)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        self.close(str(kind.__name__) if kind else "")
        _current.set(None)


def join(*, comm: str | None = None, deadline: float | None = None) -> Worker:
    """Find the other ranks. The launcher's settings win over the arguments.

    In a server process it does not return: it serves until the workers are done, and ends the process.
    """
    asked = _launched()
    where = replace(position(os.environ), turn=next(_turns))
    device = find(where.local_rank)
    chosen = asked.get("comm") or comm or "auto"
    if asked.get("strategy") == "ddp" and chosen == "auto" and device.kind == "cpu":
        chosen = "gloo"
    nodes = Run(workers=where.size, nodes=asked.get("nodes")).cluster.nodes if asked.get("nodes") else None
    seconds = asked.get("deadline") or deadline or Run().deadline
    reached = connect(where, chosen, seconds, cuda=device.kind == "cuda")
    if where.serves:
        serve_and_leave(reached)
    worker = Worker(reached, device)
    worker.comm.placement = nodes or worker.comm.placement
    atexit.register(_leave, worker)
    _current.set(worker)
    return worker


def _leave(worker: Worker) -> None:
    """The process ends. What goes wrong here would not change its exit code by itself."""
    try:
        worker.close("failed" if hasattr(sys, "last_value") else "")
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def serve_and_leave(attendant: Attendant) -> NoReturn:
    failure = "failed"
    try:
        serve(attendant)
        failure = ""
    finally:
        attendant.close(failure)
    raise SystemExit(0)


def current() -> Worker:
    """The worker that `join` gave to this thread."""
    worker = _current.get()
    if worker is None:
        raise WrongCommand("join() has not been called", remedy="worker = paceline.join()")
    return worker


def wrap(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    strategy: str | None = None,
    rule: str | None = None,
    exchange: str | None = None,
    topology: str | None = None,
    schedule: str | None = None,
    compress: str | None = None,
    membership: str | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    loss_scale: bool = False,
    private_gradients: bool = False,
    profile: str | None = None,
) -> Pace:
    """Train `model` together with the other ranks; an explicit choice of the launcher wins over the arguments.

    `profile` is a file with layer times, a record or a profile, for schedules that would otherwise measure them.
    """
    worker = current()
    given = {
        "strategy": strategy,
        "rule": rule,
        "exchange": exchange,
        "topology": topology,
        "schedule": schedule,
        "compress": compress,
        "membership": membership,
    }
    asked = {name: value for name, value in _launched().items() if name in (*CHOSEN, "nodes") and value is not None}
    # A strategy of the launcher replaces everything; a single axis of it replaces that axis.
    chosen = asked if "strategy" in asked else {**given, **asked}
    times = _launched().get("profile") or profile
    run = Run(
        workers=worker.size,
        profile=times,
        accumulate=accumulate,
        clip_norm=clip_norm,
        optimizer=written(optimizer),
        precision="fp16" if loss_scale else "fp32",  # as far as compose cares: a scaled loss may overflow
        **chosen,
    )
    worker.check_apart(model)
    model = worker.device.place_model(model)
    settings: dict[str, Any] = {
        "comm": worker.comm,
        "device": worker.device,
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "loss_scale": LossScale() if loss_scale else None,
    }
    if run.reference:
        return _watched(_reference(run, asked, model, optimizer, settings), worker)
    axes = compose(run, Machine(gpus=int(worker.device.kind == "cuda")), unknown=("model",))
    assert axes is not None
    pace = Pace(
        model,
        optimizer,
        axes=axes,
        private_gradients=private_gradients,
        profile=read_profile(Path(times)) if times else None,
        **settings,
    )
    worker.add(pace)
    return _watched(pace, worker)


def _reference(run: Run, asked: Mapping[str, Any], model: Any, optimizer: Any, settings: Mapping[str, Any]) -> Any:
    """Only a race puts a reference where the user's own strategy was."""
    if MEASURE not in os.environ or "strategy" not in asked:
        raise WrongCommand(f"strategy {run.strategy}", why="a reference cannot be wrapped", remedy="strategy allreduce")
    from paceline.references.ddp import OwnLoopDdp
    from paceline.references.limit import Limit

    return {"ddp": OwnLoopDdp, "limit": Limit}[str(run.strategy)](model, optimizer, **settings)


def _watched(pace: Any, worker: Worker) -> Any:
    """In a race the updates are timed, and what was seen is left for the launcher when the process ends."""
    if MEASURE in os.environ and "PACELINE_JOB" in os.environ:
        from paceline.train.steplog import StepLog

        log = StepLog(pace, lambda: worker.dealt)
        pace.on_step = log.note
        worker.at_close = lambda: log.write(device=worker.device.kind)
    return pace


def _count(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else ()
    return next((_count(part) for part in parts), 0)


def _launched() -> dict[str, Any]:
    """What was chosen explicitly on the command line of the launcher."""
    text = os.environ.get("PACELINE_CHOICES")
    return dict(json.loads(text)) if text else {}

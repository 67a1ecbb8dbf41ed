"""`join` connects this process to the other ranks and returns its Worker, which shards the data.

    worker = paceline.join()
    pace = paceline.wrap(model, optimizer, strategy="allreduce")        see wrap.py
    for x, y in worker.batches(dataset):
        criterion(model(x), y).backward()
        pace.step()

This works in a single process, and under `paceline run`, torchrun, mpirun and srun.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

import torch

from paceline.api.batches import Batches
from paceline.comm.connect import connect
from paceline.comm.position import position
from paceline.comm.service import Attendant
from paceline.comm.torch.stores import open_default_group
from paceline.elastic.launch import FOLDER
from paceline.engine.device import Device, find
from paceline.errors import CallMismatch, WrongCommand
from paceline.run.reference import REFERENCES
from paceline.run.run import Run
from paceline.train.metrics import MetricLog
from paceline.train.pace import Pace
from paceline.train.passes import Passes
from paceline.train.serve import serve
from paceline.types import Cursor, View
from paceline.workload.loader import Dealt, sampler_epoch, shares

ELASTIC = FOLDER  # set by the launcher of an elastic job

_current: ContextVar[Worker | None] = ContextVar("paceline worker", default=None)


class Worker:
    """This process as a rank of the job: its rank, size, device, comm, and share of the data."""

    elastic = False  # whether members of the job may come and go

    def __init__(self, comm: Any, device: Device) -> None:
        self._comm, self.device = comm, device
        self._paces: list[Pace] = []
        self.passes, self.metrics = Passes(), MetricLog()
        self._open, self._pid = True, os.getpid()
        self.windows: dict[str, Any] = {}  # windows that are not freed yet, by name
        self.windows_made = 0
        self.levels: dict[str, tuple[Any, Any]] = {}  # hierarchical calls by topology: the channel and its last work
        self.inside: Any = None  # the comm of this rank's node, made by its first use
        self.at_close: Callable[[], None] | None = None
        self.end_group: Callable[[], None] | None = None  # destroys the default process group that join() made
        self.dealt = (0, 0)  # batches and samples that `batches` has yielded so far
        self.waited = 0.0  # seconds in which `batches` prepared those that were trained on
        self.newest: Any = None  # the model that was wrapped last
        self._shares: deque[float | None] = deque(maxlen=1024)  # this rank's fraction of each trained batch
        self._sampled: Callable[[Any], float | None] | None = None  # the same, if a sampler deals the batches
        self._epochs: dict[int, tuple[Any, int]] = {}  # a reference to the data is kept, so that its id is not reused

    @property
    def comm(self) -> Any:
        """Return the comm. An unfinished step is finished first, so that all ranks keep one order of calls."""
        self._comm.check_process()
        for pace in self._paces:
            pace.finish()
        return self._comm

    @property
    def rank(self) -> int:
        """Return the rank of this process in its group."""
        return int(self._comm.rank)

    @property
    def size(self) -> int:
        """Return the number of ranks in the group."""
        return int(self._comm.size)

    @property
    def first(self) -> bool:
        """Return whether this is rank 0, which prints and saves."""
        return bool(self.rank == 0)

    def batches(
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        epoch: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        training: bool | None = None,
    ) -> Batches:
        """Return this rank's share of a dataset, a DataLoader or any iterable of batches, on the device.

        `batch_size` is per worker. With a dataset or a DataLoader over one, every sample is used once per epoch by
        one rank, and the sequence of samples depends only on the seed and the global batch, not on the number of
        workers. With any other iterable, rank r takes batch r of every `size` batches.

        The last global batch may be short. Its samples weigh as much as all others. A rank that gets none of them gets
        another sample, whose gradient has weight 0, so that all ranks make the same number of steps. `drop_last`, or
        that of the DataLoader, omits a short batch.

        `epoch` is the first epoch; it decides the order of samples. Without it, a call continues after the epochs of
        the previous call. `training` says whether the loop trains on these batches; by default it does if gradients are
        enabled. An evaluation under torch.no_grad() therefore gets every sample once, and no sample of weight 0.
        """
        first = self._next_epoch(data) if epoch is None else epoch
        self._epochs[id(data)] = (data, first + epochs)

        def trained() -> bool:
            return torch.is_grad_enabled() if training is None else training

        def begin(cursor: Cursor) -> Iterator[Dealt]:
            return shares(
                data,
                View(self.rank, self.size, self._comm.placement),
                batch_size=batch_size,
                epochs=range(cursor.epoch, first + epochs),
                seed=seed,
                start=cursor.step,
                drop_last=drop_last,
                training=trained,
            )

        def took(dealt: Dealt) -> None:
            self.dealt = (self.dealt[0] + 1, self.dealt[1] + dealt.samples)
            if trained():
                self._sampled = None
                self._shares.append(dealt.samples / dealt.total if dealt.total else None)

        def waited(seconds: float) -> None:
            self.waited += seconds if trained() else 0.0

        return Batches(begin, Cursor(first, 0, seed), took, self.device.place, waited)

    @property
    def paces(self) -> tuple[Any, ...]:
        """Return the wrapped models."""
        return tuple(self._paces)

    def updates(self) -> dict[int, int]:
        """Return the number of updates of every wrapped model, by its id()."""
        return {id(pace): pace.steps for pace in self._paces}

    def use_shares(self, share: Callable[[Any], float | None]) -> None:
        """Weigh gradients by the batches of a sampler from now on."""
        self._sampled = share

    def share_of(self, pace: Any) -> float | None:
        """Return this rank's fraction of the samples in the current step of `pace`; None means equal fractions."""
        if self._sampled is not None:
            return self._sampled(pace)
        recent = list(self._shares)[-pace.accumulate :]
        known = [share for share in recent if share is not None]
        return sum(known) / len(known) if recent and len(known) == len(recent) else None

    def _next_epoch(self, data: Any) -> int:
        """Return the epoch after the last one of `data`, or the epoch that its DistributedSampler was set to later."""
        after, sampler = self._epochs.get(id(data), (data, 0))[1], sampler_epoch(data)
        return after if sampler is None or sampler == after - 1 else sampler

    def check_apart(self, model: torch.nn.Module) -> None:
        """Raise if the model shares a trained parameter with another wrapped model."""
        self._paces = [pace for pace in self._paces if not pace.closed]
        taken = {id(parameter) for pace in self._paces for parameter in pace.trained}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) in taken:
                raise WrongCommand(
                    f"wrap of {type(model).__name__}",
                    why=f"its {name} is wrapped already, and its gradient would be exchanged twice",
                    remedy="close() the result of the first wrap, or one optimizer with several parameter groups",
                )

    def add(self, pace: Pace) -> None:
        """Register a wrapped model. Several models exchange in turn, because backward may reach them in any order."""
        self._paces.append(pace)
        pace.share = lambda: self.share_of(pace)
        for each in self._paces if len(self._paces) > 1 else ():
            each.defer()

    def close(self, failure: str = "") -> None:
        """Leave the job. Does nothing in a forked child, because the parent is still in the job."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            atexit.unregister(self.leave)
            abandoned = any(pace.under_way for pace in self._paces)
            try:
                for pace in () if failure else self._paces:
                    if not pace.under_way:  # other ranks may never finish a step that was abandoned
                        pace.finish()
                if self.at_close is not None and not failure:
                    self.at_close()
            finally:
                self._comm.close(failure, abandoned)
                if self.end_group is not None and not failure:
                    self.end_group()

    def leave(self) -> None:
        """Leave the job at interpreter exit. An error ends the process with code 1; a CallMismatch is only printed."""
        try:
            self.close("failed" if hasattr(sys, "last_value") else "")
        except CallMismatch as problem:
            # Keep the exit code of the script: a rank that calls sys.exit(3) makes fewer calls than the others.
            print(f"paceline: {problem}", file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        self.close(str(kind.__name__) if kind else "")
        _current.set(None)


def join(*, comm: str | None = None, deadline: float | None = None, process_group: bool = False) -> Worker:
    """Connect to the other ranks and return this process's Worker. Settings of the launcher override the arguments.

    `process_group=True` also makes torch's default process group (gloo, or nccl on GPUs), for scripts that use
    DistributedSampler or call torch.distributed themselves. An existing default group is used and never replaced.
    In a server process this call does not return: it serves until the workers are done, then ends the process.
    """
    launched = launched_options()
    if ELASTIC in os.environ:
        from paceline.api.elastic import join_elastic

        member = join_elastic(find(int(os.environ.get("LOCAL_RANK", 0))))
        _current.set(member)
        return member
    where = position(os.environ)
    if where.first is not None and where.rank == 0:
        print(f"paceline: {where.started_by}", file=sys.stderr, flush=True)
    device = find(where.local_rank)
    chosen = launched.get("comm") or comm or "auto"
    reference = REFERENCES.get(launched.get("strategy", ""))
    if reference is not None and chosen == "auto" and device.kind == "cpu":
        chosen = reference.comm_on_cpu or chosen
    nodes = Run(workers=where.size, nodes=launched.get("nodes")).cluster.nodes if launched.get("nodes") else None
    seconds = launched.get("deadline") or deadline or Run().deadline
    reached = connect(where, chosen, seconds, device.kind == "cuda", launched.get("socket_buffer") or 0)
    if where.serves:
        serve_and_leave(reached)
    worker = Worker(reached, device)
    worker.comm.placement = nodes or worker.comm.placement
    if process_group:
        worker.end_group = open_default_group(where, reached, seconds, device.kind == "cuda")
    atexit.register(worker.leave)
    _current.set(worker)
    return worker


def serve_and_leave(attendant: Attendant) -> NoReturn:
    failure = "failed"
    try:
        serve(attendant)
        failure = ""
    finally:
        attendant.close(failure)
    raise SystemExit(0)


def current() -> Worker:
    """Return the worker that `join` returned in this thread."""
    worker = _current.get()
    if worker is None:
        raise WrongCommand("join() has not been called", remedy="worker = paceline.join()")
    return worker


def log(*, step: int | None = None, **values: Any) -> None:
    """Keep figures for the record of this job, like `pace.log`: paceline.log(loss=loss, accuracy=0.91).

    `step` is by default the number of updates of the model that was wrapped last.
    """
    worker = current()
    newest = worker.newest
    known = 0 if newest is None else newest.steps
    worker.metrics.log(known if step is None else step, values)


def launched_options() -> dict[str, Any]:
    """Return the options that were set explicitly on the launcher's command line."""
    text = os.environ.get("PACELINE_CHOICES")
    return dict(json.loads(text)) if text else {}

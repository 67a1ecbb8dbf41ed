"""The Worker that `paceline.join` returns in an elastic job, and its share of the data."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from paceline.api.join import Worker
from paceline.elastic.contact import Contact
from paceline.elastic.launch import FOLDER
from paceline.elastic.presence import ElasticPresence, member_name
from paceline.elastic.transports import transport_of
from paceline.engine.device import Device
from paceline.errors import WrongCommand
from paceline.strategy.memberships.elastic import Elastic
from paceline.train.elastic_pace import ElasticPace
from paceline.workload.order import Permuted


class EndRequest:
    """Handles SIGTERM as a request to leave the job, unless the script has its own handler.

    A second SIGTERM kills the process.
    """

    def __init__(self) -> None:
        self._open, self._act = False, lambda: None

    def open(self, act: Callable[[], None]) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._open, self._act = True, act
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.close()
        self._act()

    def close(self) -> None:
        if self._open and threading.current_thread() is threading.main_thread():
            self._open = False
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class ElasticWorker(Worker):
    """This process as a member of an elastic job.

    Before it enters a group, rank and size have the values of the launch.
    """

    elastic = True

    def __init__(
        self, contact: Contact, device: Device, slot: int, start: int, choices: Mapping[str, Any] | None = None
    ) -> None:
        self._contact, self._slot, self._start, self._choices = contact, slot, start, dict(choices or {})
        self._presence: ElasticPresence | None = None
        self._finished = False
        self._requests = EndRequest()
        super().__init__(None, device)

    @property
    def comm(self) -> Any:
        raise WrongCommand(
            "a collective in an elastic job",
            why="members come and go, and a call that one of them misses would never end",
            remedy="if pace.step(): ... for what happens once per step, or membership fixed",
        )

    @property
    def rank(self) -> int:
        presence = self._presence
        return presence.comm.rank if presence is not None and presence.inside else self._slot

    @property
    def size(self) -> int:
        presence = self._presence
        return presence.comm.size if presence is not None and presence.inside else self._start

    def wrap(self, model: Any, optimizer: Any, membership: Elastic, clip_norm: float | None) -> ElasticPace:
        """Return the ElasticPace that trains a model in this job. The first batch or step enters the group."""
        if self._presence is not None:
            raise WrongCommand("a second wrap() in an elastic job", why="one model is committed at a time")
        name = member_name(self._slot)
        comm, buffer = self._choices.get("comm") or "auto", self._choices.get("socket_buffer") or 0
        transport = transport_of(comm, self._contact, os.environ, buffer)
        self._presence = ElasticPresence(self._contact, name, shards=membership.shards, transport=transport)
        pace = ElasticPace(
            model,
            optimizer,
            presence=self._presence,
            shards=membership.shards,
            deterministic=membership.deterministic,
            clip_norm=clip_norm,
        )
        self._paces.append(pace)  # type: ignore[arg-type]
        self._requests.open(self._on_request)
        return pace

    def _on_request(self) -> None:
        """Leave the job after the current step, or exit at once if this member is in no group. Called on SIGTERM."""
        presence = self._presence
        assert presence is not None
        presence.parting = True
        words = "after this step" if presence.inside else "now"
        print(
            f"paceline: this worker was asked to end (SIGTERM); it leaves the job {words}", file=sys.stderr, flush=True
        )
        if not presence.inside:
            raise SystemExit(0)

    def batches(  # type: ignore[override]
        self,
        data: Any,
        *,
        batch_size: int | None = None,
        epochs: int = 1,
        seed: int = 0,
        drop_last: bool = False,
        **unused: Any,
    ) -> Iterator[Any]:
        """Yield this member's shards of every global batch, on the device, until all epochs are committed.

        The global batch is `batch_size` times the number of workers at the start of the job, even if members leave or
        join. If a step was not committed, its shards are dealt again to the members that are left.
        """
        if unused.get("epoch") is not None:
            raise WrongCommand("batches(epoch=...) in an elastic job", why="the committed steps say where training is")
        dataset, collate, size = _indexable(data, batch_size)
        order = Permuted(len(dataset), size * self._start, seed, drop_last=drop_last)
        pace: Any = self._paces[-1] if self._paces else None
        if pace is None:
            raise WrongCommand("batches() before wrap()", remedy="pace = paceline.wrap(model, optimizer) first")
        return self.deal(pace, order, lambda ids: collate([dataset[index] for index in ids]), epochs * order.steps)

    def deal(self, pace: ElasticPace, order: Any, fetch: Callable[[list[int]], Any], goal: int) -> Iterator[Any]:
        """Yield this member's shards until `goal` steps are committed. `fetch` returns the batch of some sample ids."""
        assert self._presence is not None
        text = f"{goal} steps of {order.global_batch} of {order.samples} samples in the order of seed {order.seed}"
        self._presence.client.describe(text)
        pace.enter()
        while pace.steps < goal:
            shard = pace.shard
            epoch, step = divmod(pace.steps, order.steps)
            if pace.steps >= goal:
                break
            ids = order.ids(epoch, step, shard, pace.shards)
            total = min(order.global_batch, order.samples - step * order.global_batch)
            pace.weight = len(ids) / total
            # A shard of a short batch may be empty: a stand-in whose gradient has no weight keeps members in step.
            chosen = ids.tolist() or order.ids(epoch, step)[:1].tolist()
            pace.sow(shard)
            self.dealt = (self.dealt[0] + 1, self.dealt[1] + len(ids))
            with pace.fetching():
                batch = self.device.place(fetch(chosen))
            pace.laps.lap("data")
            yield batch
        self._finished = True
        self._requests.close()

    def close(self, failure: str = "") -> None:
        """Leave the job. Does nothing in a forked child, because the parent is still in the job."""
        if self._open and os.getpid() == self._pid:
            self._open = False
            atexit.unregister(self.leave)
            self._requests.close()
            if self._presence is not None:
                self._presence.close(finished=self._finished and not failure)


def _indexable(data: Any, batch_size: int | None) -> tuple[Any, Any, int]:
    """Return dataset, collate function and batch size for a user's data. Raises if samples have no indices."""
    from torch.utils.data import DataLoader, IterableDataset, default_collate

    loader = data if isinstance(data, DataLoader) else None
    dataset = data if loader is None else loader.dataset
    size = batch_size or (loader.batch_size if loader is not None else None)
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise WrongCommand(
            f"worker.batches({type(data).__name__}) in an elastic job",
            why="samples without numbers cannot be dealt again when a worker dies",
            remedy="a dataset with __getitem__ and __len__",
        )
    if size is None:
        raise WrongCommand("worker.batches(dataset)", why="its batch size is not known", remedy="batch_size=32")
    return dataset, (loader.collate_fn if loader is not None else default_collate), size


def join_elastic(device: Device) -> ElasticWorker:
    """Return the worker of a process that the launcher of an elastic job has started."""
    if device.kind != "cpu":
        raise WrongCommand("membership elastic on a GPU", why="it moves gradients through the memory of the host")
    slot, start = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    choices = json.loads(os.environ.get("PACELINE_CHOICES") or "{}")
    worker = ElasticWorker(Contact.parse(os.environ[FOLDER], os.environ), device, slot, start, choices)
    atexit.register(worker.leave)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    return worker

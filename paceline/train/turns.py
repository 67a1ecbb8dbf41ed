"""The entry point of a rank in a shared start: several contenders share its process and take turns.

    build and warm up     a        b        c
    turn 1              | c ..  | a ..  | b ..  |          each block: one unmeasured step, then measured steps;
    turn 2              | a ..  | b ..  | c ..  |          an exchange that crosses its last step is timed separately
    ...                                                    the order of contenders is drawn for each turn

Each contender has its own model, optimizer, comm, plan and random state. All must agree on process-wide settings.

If they do not fit into memory together, they go in sequence: build a, measure a, forget a, build b ...
"""

from __future__ import annotations

if __name__ == "__main__":
    from paceline.comm.interruption import end_at_once

    end_at_once()

import copy
import gc
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.cluster.machine import Machine
from paceline.comm.connect import connect
from paceline.comm.position import Position, position
from paceline.engine.device import Device, find
from paceline.errors import NoRoom, WrongCommand
from paceline.measure.record.record import write
from paceline.measure.turns import COPIES, TurnsTask, free_memory, report_path, task_path
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.train.build import training_of, workload_of
from paceline.train.measurement import Measurement
from paceline.train.worker import comm_choice, leave_failure
from paceline.types import Workload
from paceline.workload.sources._source import Source


class RandomState:
    """The random state of one contender."""

    def __init__(self) -> None:
        self._keep()

    def _keep(self) -> None:
        self._torch, self._random, self._numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Use this random state inside the with-block, and keep its new value afterwards."""
        torch.set_rng_state(self._torch)
        random.setstate(self._random)
        np.random.set_state(self._numpy)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        try:
            yield
        finally:
            self._keep()


def process_settings() -> dict[str, Any]:
    """Return the settings that all contenders of one process share."""
    return {
        "threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "default dtype": str(torch.get_default_dtype()),
        "cudnn benchmark": torch.backends.cudnn.benchmark,
        "mkldnn": torch.backends.mkldnn.enabled,
    }


class Workloads:
    """Makes the workloads of contenders. Those with the same settings get copies of one that was built once.

    A model of the user's own is built for each contender, because it may not be copyable.
    """

    def __init__(self) -> None:
        self._built: dict[tuple[Any, ...], Workload] = {}

    def __call__(self, run: Run, source: Source | None = None, rank: int = 0) -> Workload:
        if run.compute != "real" or ":" in run.model:
            return workload_of(run, source, rank)
        names = ("model", "classes", "image_size", "sequence_length", "seed", "label_smoothing", "source")
        key = tuple(getattr(run, name) for name in names)
        if key not in self._built:
            self._built[key] = workload_of(run, source, rank)
        first = self._built[key]
        return replace(first, model=copy.deepcopy(first.model))


class Contender:
    """One contender in this process: its comm, its measurement, and its random state."""

    def __init__(
        self, run: Run, label: str, where: Position, device: Device, state: dict[str, Any], workloads: Workloads
    ) -> None:
        self.run, self.label, self._state = run, label, state
        self._random = RandomState()
        with self.acting():
            composed = compose(run, Machine(torch.cuda.device_count()))
            self.comm = connect(where, comm_choice(run, device), run.deadline, cuda=device.kind == "cuda")
            self.comm.placement = run.cluster.nodes if run.nodes else self.comm.placement
            self.measurement = Measurement(run, training_of(composed, self.comm, device, workloads), self.comm, state)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Use this contender's random state inside the with-block, and name it in errors that occur there."""
        self._state["contender"] = self.label
        with self._random.inside():
            yield
        self._state["contender"] = ""

    def warm_up(self) -> float:
        """Make warm-up steps. Return the seconds of the fastest one: the first ones are slow."""
        with self.acting():
            return min(self.measurement.warm_up())

    def turn(self) -> None:
        with self.acting():
            self.measurement.turn(self.run.steps or 1)


def work(task: TurnsTask, state: dict[str, Any], folder: Path) -> None:
    where = position(os.environ)
    first = task.runs[0]
    torch.set_num_threads(first.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))
    device = find(where.local_rank)
    referee = connect(where, "auto", first.deadline, cuda=device.kind == "cuda")
    comms, failure = [referee], "failed"
    try:
        if task.in_sequence:
            _in_sequence(task, where, device, state, folder, referee)
            failure = ""
            return
        contenders = []
        for contender in _built(task, where, device, state):
            contenders.append(contender)
            comms.append(contender.comm)
        _race(task, contenders, referee)
        _hand_in(contenders, folder, referee)
        failure = ""
    finally:
        for comm in reversed(comms):
            comm.close(failure)


def _in_sequence(
    task: TurnsTask, where: Position, device: Device, state: dict[str, Any], folder: Path, referee: Any
) -> None:
    """Build, measure and forget one contender after another."""
    settings, costs = process_settings(), None
    for index, (run, label) in enumerate(zip(task.runs, task.labels, strict=True)):
        if referee.rank == 0:
            print(f"{index + 1}/{len(task.runs)}: {label}", flush=True)
        contender = Contender(run, label, where, device, state, Workloads())
        failure = "failed"
        try:
            _check_settings(contender.label, settings, state)
            costs = _measured_alone(contender, task.turns or 1, folder, index, costs)
            failure = ""
        finally:
            contender.comm.close(failure)
        del contender
        gc.collect()
        referee.barrier()


def _measured_alone(
    contender: Contender, turns: int, folder: Path, index: int, costs: tuple[float | None, float | None] | None
) -> tuple[float | None, float | None]:
    """Measure blocks of a contender that has the processes to itself, write its report, and return its costs."""
    contender.warm_up()
    with contender.acting():
        measurement = contender.measurement
        measurement.begin()
        for _ in range(turns):
            measurement.block(contender.run.steps or 1)
        measurement.grade(0)
        report = measurement.report(costs)
    write(report_path(folder, index, report.rank), report.to_json())
    return report.flops, report.peak


def _built(task: TurnsTask, where: Position, device: Device, state: dict[str, Any]) -> Iterator[Contender]:
    settings, workloads = process_settings(), Workloads()
    for index, (run, label) in enumerate(zip(task.runs, task.labels, strict=True)):
        contender = Contender(run, label, where, device, state, workloads)
        if index == 0:
            here = int(os.environ.get("LOCAL_WORLD_SIZE", where.size))
            check_room(contender.measurement.training.model, len(task.runs), here, task.room)
        _check_settings(label, settings, state)
        yield contender


def check_room(model: torch.nn.Module, copies: int, processes: int, room: int | None) -> None:
    """Raise NoRoom if `copies` contenders in each of `processes` processes do not fit into memory."""
    nbytes = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    needed, free = nbytes * COPIES * (copies - 1) * processes, free_memory() if room is None else room
    if free is not None and needed > free:
        raise NoRoom(
            f"{copies} contenders in each of {processes} processes",
            why=f"they need about {needed / 1e9:.1f} GB more and {free / 1e9:.1f} GB are free",
            remedy="--isolated",
        )


def _check_settings(label: str, settings: dict[str, Any], state: dict[str, Any]) -> None:
    now = process_settings()
    changed = [name for name in settings if now[name] != settings[name]]
    if changed:
        state["contender"] = label
        what = ", ".join(f"{name} from {settings[name]} to {now[name]}" for name in changed)
        raise WrongCommand(f"{label} cannot share a process", why=f"its model sets {what} for all", remedy="--isolated")


def _race(task: TurnsTask, contenders: list[Contender], referee: Any) -> None:
    """Warm up all contenders, agree on the number of turns, and take them."""
    expected = sum((1 + (one.run.steps or 1)) * one.warm_up() for one in contenders)
    agreed = torch.tensor([float(task.count(expected))], dtype=torch.float64)
    referee.broadcast(agreed, 0, "the number of turns").wait()
    turns = int(agreed.item())
    for contender in contenders:
        contender.measurement.begin()
    gc.collect()
    for turn in range(turns):
        if referee.rank == 0:
            print(f"turn {turn + 1}/{turns}", flush=True)
        for place in task.order(turn):
            contenders[place].turn()


def _hand_in(contenders: list[Contender], folder: Path, referee: Any) -> None:
    """Write the report of each contender. FLOPs are counted once, because all contenders have the same model."""
    costs = None
    for index, contender in enumerate(contenders):
        with contender.acting():
            contender.measurement.grade(0)
            report = contender.measurement.report(costs)
        costs = report.flops, report.peak
        write(report_path(folder, index, report.rank), report.to_json())
    referee.barrier()


def main() -> int:
    folder = Path(os.environ["PACELINE_JOB"])
    rank = int(os.environ["RANK"])
    state: dict[str, Any] = {"step": -1, "contender": ""}
    try:
        work(TurnsTask.model_validate_json(task_path(folder).read_text()), state, folder)
    except BaseException as problem:
        return leave_failure(folder, rank, state["step"], problem, state["contender"])
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Other ranks' threads may still hold locks of torch; leaving at once cannot hang.
    os._exit(code)

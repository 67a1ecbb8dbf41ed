"""`wrap` makes a Pace from a user's model and optimizer. Options of the launcher override its arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from paceline.api.join import Worker, current, launched_options
from paceline.cluster.machine import Machine
from paceline.errors import WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import CHOSEN, Run
from paceline.strategy.memberships import MENU as MEMBERSHIPS
from paceline.train.pace import Pace
from paceline.train.scaling import LossScale
from paceline.types import Cluster
from paceline.workload.profile import read as read_profile
from paceline.workload.recipe import written

MEASURE = "PACELINE_MEASURE"  # set by `paceline run` and by a race, so that a script's updates are timed


def wrap(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    strategy: str | None = None,
    rule: str | None = None,
    exchange: str | None = None,
    topology: str | None = None,
    schedule: str | None = None,
    compressor: str | None = None,
    membership: str | None = None,
    compress: str | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    loss_scale: bool = False,
    private_gradients: bool = False,
    profile: str | None = None,
) -> Pace:
    """Return a Pace that trains `model` together with the other ranks. Options of the launcher override arguments.

    `profile` is a record or a profile with layer times, for schedules that would otherwise measure them.
    `compress` is an older name of `compressor`.
    """
    worker = current()
    compressor = _one_of(compressor, compress)
    arguments = {
        "strategy": strategy,
        "rule": rule,
        "exchange": exchange,
        "topology": topology,
        "schedule": schedule,
        "compressor": compressor,
        "membership": membership,
    }
    options = launched_options()
    launched = {name: value for name, value in options.items() if name in (*CHOSEN, "nodes") and value is not None}
    # A strategy from the launcher replaces all arguments; a single axis from it replaces that axis.
    chosen = launched if "strategy" in launched else {**arguments, **launched}
    times = options.get("profile") or profile
    run = Run(
        workers=worker.size,
        profile=times,
        accumulate=accumulate,
        clip_norm=clip_norm,
        optimizer=written(optimizer),
        precision="fp16" if loss_scale else "fp32",  # all that compose needs to know: a scaled loss may overflow
        **chosen,
    )
    worker.check_apart(model)
    model = worker.device.place_model(model)
    if worker.elastic or (run.membership is not None and MEMBERSHIPS.make(run.membership).elastic):
        return _wrap_elastic(worker, run, model, optimizer, clip_norm)
    settings: dict[str, Any] = {
        "comm": worker.comm,
        "device": worker.device,
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "loss_scale": LossScale() if loss_scale else None,
    }
    if run.reference:
        return _watched(_reference(run, launched, model, optimizer, settings), worker, model, run)
    cluster = Cluster(worker.comm.placement or (0,) * worker.size)
    axes = compose(run, Machine(gpus=int(worker.device.kind == "cuda")), cluster, unknown=("model",)).axes
    assert axes is not None
    pace = Pace(
        model,
        optimizer,
        axes=axes,
        private_gradients=private_gradients,
        profile=read_profile(Path(times)) if times else None,
        passes=worker.passes,
        **settings,
    )
    worker.add(pace)
    return _watched(pace, worker, model, run)


def _wrap_elastic(worker: Worker, run: Run, model: Any, optimizer: Any, clip_norm: float | None) -> Any:
    axes = compose(run, Machine(), unknown=("model",)).axes
    assert axes is not None
    if not worker.elastic:
        raise WrongCommand(
            f"membership {run.membership}",
            why="no coordinator was started",
            remedy="paceline run -np 4 --membership elastic -- python SCRIPT",
        )
    return cast(Any, worker).wrap(model, optimizer, axes.membership, clip_norm)


def _one_of(compressor: str | None, compress: str | None) -> str | None:
    """Return the compressor, which may be passed under either name. Raises WrongCommand if both are passed."""
    if compressor is not None and compress is not None:
        raise WrongCommand("compressor beside compress", why="the second is an older name", remedy="compressor=...")
    return compressor if compress is None else compress


def _reference(run: Run, launched: Mapping[str, Any], model: Any, optimizer: Any, settings: Mapping[str, Any]) -> Any:
    """Return a reference instead of a Pace. Raises WrongCommand if the launcher has not named it."""
    if MEASURE not in os.environ or "strategy" not in launched:
        raise WrongCommand(
            f"strategy {run.strategy}",
            why="a reference is no strategy, and only the launcher can put it in place of one",
            remedy=f"paceline run --strategy {run.strategy} -- python SCRIPT",
        )
    from paceline.train.references import OWN_LOOP

    reference = OWN_LOOP.load(str(run.reference))(model, optimizer, **settings)
    reference.take_over()
    return reference


def _watched(pace: Any, worker: Worker, model: Any, run: Run) -> Any:
    """Return the pace. In a measured job, also time its updates, and write the times when the process ends."""
    worker.newest, pace.metrics = pace, worker.metrics
    if MEASURE in os.environ and "PACELINE_JOB" in os.environ:
        from paceline.train.steplog import StepLog

        chosen = {name: str(value) for name in CHOSEN if (value := getattr(run, name)) is not None}
        log = StepLog(pace, lambda: worker.dealt, model=model, waited=lambda: worker.waited, settings=chosen)
        log.begin()
        pace.on_step = log.note
        worker.at_close = lambda: log.write(device=worker.device.kind)
    return pace

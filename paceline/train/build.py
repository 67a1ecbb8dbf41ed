"""Build the objects that carry out a Run. Only this file knows all families: rules, exchanges, schedules and so on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.comm.transport import Comm
from paceline.engine.device import Device, find
from paceline.errors import WorkloadError
from paceline.run.axes import Composed
from paceline.run.run import Run
from paceline.train import references
from paceline.train.evaluate import in_eval
from paceline.train.labels import blamed
from paceline.train.loop import Training
from paceline.train.pace import Pace
from paceline.train.producer import SETTINGS
from paceline.train.scaling import LossScale
from paceline.train.stepper import Reference, Stepper
from paceline.types import View, Workload
from paceline.workload import rates, sources
from paceline.workload.computes import MENU as COMPUTE
from paceline.workload.feed import Feed
from paceline.workload.profile import read as read_profile
from paceline.workload.recipe import make_optimizer
from paceline.workload.resolve import build as build_workload
from paceline.workload.resolve import seeded
from paceline.workload.sources._source import Counted, Noted, Source, Streaming
from paceline.workload.stream.feed import StreamFeed


def workload_of(run: Run, source: Source | None = None, rank: int = 0) -> Workload:
    """Return the workload of a run. It fits the samples of the source, if the source has its own.

    With compute `replay`, return a workload that waits for the times of a profile instead of computing.
    """
    waiting: Workload | None = COMPUTE.make(run.compute).workload(rank)
    if waiting is not None:
        return waiting
    fit = {} if source is None else source.fit()
    workload = build_workload(
        run.model,
        classes=run.classes,
        image_size=run.image_size,
        sequence_length=run.sequence_length,
        seed=run.seed,
        fit=fit,
    )
    if run.label_smoothing:
        workload = _smoothed(run, workload)
    if fit and source is not None:
        _try_out(run, workload, source)
    return workload


def _smoothed(run: Run, workload: Workload) -> Workload:
    if workload.smoothed is None:
        raise WorkloadError(
            f"--label-smoothing {run.label_smoothing:g} with model {run.model}",
            why="its loss does not say how (Workload.smoothed)",
            remedy="leave it out, or smooth the labels in your loss",
        )
    return replace(workload, loss=workload.smoothed(run.label_smoothing))


def _rate_of(run: Run, optimizer: Any) -> Callable[[float], float] | None:
    """Return the learning rate as a function of the time in epochs, or None to keep the optimizer's rate."""
    if run.lr_schedule is None:
        return None
    schedule, own = rates.MENU.make(run.lr_schedule), optimizer.param_groups[0]["lr"]
    return lambda time: schedule.rate(own, run.samples_per_step, time, run.epochs or 1)


def _try_out(run: Run, workload: Workload, source: Source) -> None:
    """Raise WorkloadError if the model cannot process the samples of a source. Called before the first step.

    The sample is not taken from an order: an order of single samples takes seconds for a large source.
    """
    ids = torch.tensor([0])
    batch = source.samples_of(workload)(ids)
    try:
        with seeded(run.seed), torch.no_grad(), in_eval(workload.model):  # the trial must not change statistics
            workload.loss(workload.model, batch)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as problem:
        if blame := blamed(problem, batch, ids, "training"):
            raise blame from None
        shapes = ", ".join(" x ".join(map(str, part.shape[1:])) or "1 number" for part in batch)
        raise WorkloadError(
            f"{run.model} cannot take the samples of {source} ({shapes})",
            why=str(problem).splitlines()[0],
            remedy="idx(FOLDER, channels=3) for networks that take colors, or --model small_cnn",
        ) from None


def training_of(
    composed: Composed,
    comm: Comm,
    device: Device | None = None,
    make_workload: Callable[[Run, Source | None, int], Workload] = workload_of,
) -> Training:
    """Build the Training of this rank: model, optimizer, pace and data, ready for the first step."""
    run, device = composed.run, device or find()
    source = sources.MENU.make(run.source)
    workload = make_workload(run, source.inner if isinstance(source, Streaming) else source, comm.rank)
    model = device.place_model(workload.model)
    if run.memory_format == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(run.optimizer, [p for p in model.parameters() if p.requires_grad])
    pace = pace_of(composed, model, optimizer, comm, device)
    called = pace.model if run.reference else model
    view = View(comm.rank, comm.size, comm.placement)
    return Training(
        workload=workload,
        model=torch.compile(called) if run.compile else called,
        pace=pace,
        feed=feed_of(run, workload, view, device, source),
        tests=source.tests(),
        place=_placing(run, device),
        rank=comm.rank,
        accumulate=run.accumulate,
        optimizer=optimizer,
        notes=source.notes() if isinstance(source, Noted) else (),
        counts=source.counts if isinstance(source, Counted) else lambda: None,
        rate=_rate_of(run, optimizer),
        precision=run.precision,
        device="cuda" if device.kind == "cuda" else "cpu",
    )


def pace_of(composed: Composed, model: Any, optimizer: Any, comm: Comm, device: Device) -> Stepper:
    """Return a Pace, or the reference if the run names one."""
    run, axes = composed.run, composed.axes
    settings: dict[str, Any] = {
        "comm": comm,
        "device": device,
        "accumulate": run.accumulate,
        "clip_norm": run.clip_norm,
        "loss_scale": LossScale() if run.precision == "fp16" else None,
    }
    if axes is None:
        reference: Reference = references.MENU.load(str(run.reference))
        return reference(model, optimizer, **settings)
    profile = read_profile(Path(run.profile)) if run.profile else None
    return Pace(model, optimizer, axes=axes, profile=profile, clock=time.perf_counter, **settings)


def feed_of(run: Run, workload: Workload, view: View, device: Device, source: Source | Streaming) -> Feed | StreamFeed:
    """Return the iterator over this rank's batches, one for each backward pass, on the device."""
    if isinstance(source, Streaming):
        return _stream_of(run, view, device, source)
    return Feed(
        source.samples_of(workload),
        source.order(run.samples_per_step, run.seed),
        view,
        accumulate=run.accumulate,
        place=_placing(run, device),
        constant=source.constant,
    )


def _stream_of(run: Run, view: View, device: Device, source: Streaming) -> StreamFeed:
    batch = run.samples_per_step // (view.size * run.accumulate)
    settings = {name: getattr(run, name) for name in SETTINGS}
    return StreamFeed(
        source.open(view, {**settings, "batch": batch}),
        str(source),
        batch,
        parts=view.size * run.accumulate,
        accumulate=run.accumulate,
        place=_placing(run, device),
    )


def _placing(run: Run, device: Device) -> Callable[[Any], Any]:
    """Return the function that moves a batch to the device, in the memory format of the run."""
    channels_last = run.memory_format == "channels_last"

    def place(batch: Any) -> Any:
        return device.place(_formatted(batch) if channels_last else batch)

    return place


def _formatted(batch: Any) -> Any:
    """Return a batch with its images in channels_last format."""
    if isinstance(batch, torch.Tensor):
        return batch.to(memory_format=torch.channels_last) if batch.dim() == 4 else batch
    if isinstance(batch, dict):
        return {key: _formatted(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch)(_formatted(value) for value in batch)
    return batch

"""The configurations of a check: a few to calibrate with, and held-out ones with other models and link rates.

lab    replayed compute on virtual hosts with limited links. The forecast knows that all hosts share these cores
real   real compute on one and two workers of this machine, over shared memory
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.run.reference import LIMIT
from paceline.run.run import Run
from paceline.workload.by_flops import of_flops
from paceline.workload.profile import StepProfile, Tensor

LENGTH: dict[str, Any] = {"steps": 2, "repeats": 6, "warmup": 2}
SHORT: dict[str, Any] = {"steps": 2, "repeats": 4, "warmup": 1}
PACE = {"mobilenet_v2": 0.6, "resnet18": 1.2}  # seconds of a replayed step
BATCH = 16
CALIBRATION = "calibration"

IN_THE_STEP = ("bsp", "wfbp", "mg_wfbp", "horovod")
CROSSING = ("bytescheduler", "dear")
SERVED = ("bsp_ps", "wfbp_ps", "bytescheduler_ps")
AVERAGING = ("neighbor_allreduce", "push_sum")
LABS: tuple[tuple[str, int, str, tuple[str, ...]], ...] = (
    ("mobilenet_v2", 4, "200mbit", (*IN_THE_STEP, *CROSSING, "p3", *SERVED, *AVERAGING)),
    ("resnet18", 4, "500mbit", (*IN_THE_STEP, *CROSSING, *SERVED, *AVERAGING)),
    ("mobilenet_v2", 8, "100mbit", (*IN_THE_STEP, *CROSSING, "bsp_ps", "wfbp_ps", *AVERAGING)),
    ("resnet18", 8, "200mbit", ("bsp", "wfbp", "mg_wfbp", *CROSSING, "bsp_ps", "push_sum")),
)
CALIBRATING: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (4, "300mbit", ("bsp", "wfbp", "dear", "bytescheduler", "bsp_ps", "wfbp_ps", "push_sum")),
    (8, "150mbit", ("bsp", "wfbp", "dear", "bsp_ps", "wfbp_ps", "push_sum")),
)
REAL = ("mobilenet_v2", "resnet18")
REAL_SHAPE: dict[str, Any] = {"batch_size": 8, "image_size": 64, "threads": 1, "steps": 4, "repeats": 6, "warmup": 2}
REAL_CALIBRATION: dict[str, Any] = {"batch_size": 32, "threads": 1, "steps": 6, "repeats": 6, "warmup": 2}
REAL_STRATEGIES = {1: ("bsp", "wfbp"), 2: ("bsp", "wfbp", "horovod", "mg_wfbp", "dear")}


@dataclass(frozen=True)
class Case:
    """One run of a check. A `group` is a model in a place; strategies are ranked within it.

    `held` runs are held out.
    """

    name: str
    kind: str
    group: str
    run: Run
    held: bool = True

    @property
    def strategy(self) -> str:
        return self.run.strategy or "allreduce"


def lab_cases(folder: Path, *, quick: bool) -> list[Case]:
    """Return the runs in a lab, calibrating runs first."""
    length = SHORT if quick else LENGTH
    cases = []
    for hosts, bandwidth, strategies in CALIBRATING[:1] if quick else CALIBRATING:
        for strategy in strategies[:3] if quick else strategies:
            cases.append(_lab(folder, CALIBRATION, hosts, bandwidth, strategy, length, held=False))
    for model, hosts, bandwidth, strategies in LABS[:1] if quick else LABS:
        for strategy in strategies[:5] if quick else strategies:
            cases.append(_lab(folder, model, hosts, bandwidth, strategy, length, held=True))
    return cases


def _lab(
    folder: Path, model: str, hosts: int, bandwidth: str, strategy: str, length: dict[str, Any], *, held: bool
) -> Case:
    place = f"lab(hosts={hosts}, bandwidth={bandwidth})"
    run = Run(
        workers=hosts,
        strategy=strategy,
        model="mlp" if model == CALIBRATION else model,
        lab=place,
        batch_size=BATCH,
        compute=f"replay({profile_path(folder, model)})",
        profile=None,
        **length,
    )
    return Case(f"{model}-{hosts}x{bandwidth}-{strategy}", "lab", f"{model} on {place}", run, held)


def profile_path(folder: Path, model: str) -> Path:
    return folder / f"profile-{model}.json"


def lab_profile(model: str) -> StepProfile:
    """Return the replayed times of a model; the calibrating runs use times that belong to no model."""
    return _calibration_profile() if model == CALIBRATION else of_flops(model, PACE[model], BATCH)


def _calibration_profile() -> StepProfile:
    """Return a profile of 60 tensors from 1 KiB to 1 MiB, in a mixture of sizes as in real networks."""
    sizes = [256 << (k * 7 % 11) for k in range(60)]
    return StepProfile(
        model="mlp",
        batch_size=BATCH,
        layout=tuple(Tensor(name=f"layer{k}.weight", numel=size, shape=(size,)) for k, size in enumerate(sizes)),
        forward=tuple(0.2 * (59 - k) / 60 for k in range(60)),
        forward_seconds=0.2,
        ready=tuple(0.4 * (k + 1) / 60 for k in range(60)),
        backward=0.4,
        step=0.6,
    )


def real_cases(*, quick: bool) -> list[Case]:
    """Return the runs with real compute: one worker gives the layer times of each model.

    The first model also calibrates two workers.
    """
    shape = {**REAL_CALIBRATION, **SHORT} if quick else REAL_CALIBRATION
    cases = [_real("small_cnn", 1, "mg_wfbp", shape, held=False)]
    cases += [_real("small_cnn", 2, strategy, shape, held=False) for strategy in (LIMIT.name, "bsp", "wfbp")]
    shape = {**REAL_SHAPE, **SHORT} if quick else REAL_SHAPE
    for model in REAL[:1] if quick else REAL:
        cases.append(_real(model, 1, "mg_wfbp", shape, held=False))
        for workers, strategies in REAL_STRATEGIES.items():
            for strategy in strategies[:2] if quick else strategies:
                cases.append(_real(model, workers, strategy, shape, held=True))
    return cases


def _real(model: str, workers: int, strategy: str, shape: dict[str, Any], *, held: bool) -> Case:
    run = Run(workers=workers, strategy=strategy, model=model, **shape)
    place = "one worker" if workers == 1 else f"{workers} workers"
    return Case(f"{model}-{workers}-{strategy}", "real", f"{model} on {place} of this machine", run, held)

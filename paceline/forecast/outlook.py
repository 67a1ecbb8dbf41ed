"""One forecast from Python: paceline.outlook("resnet50", machines="machines(nodes=8, device=V100)")."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from paceline.errors import WrongCommand
from paceline.forecast.calibrate import calibrate
from paceline.forecast.job import Outlook
from paceline.forecast.machines import read_machines
from paceline.forecast.study import assumed_coding, chosen_strategies, point_of
from paceline.run.run import Run


def outlook(
    model: str = "resnet50",
    *,
    machines: str,
    strategy: str = "allreduce",
    workers: int | None = None,
    batch_size: int = 64,
    profile: str | PathLike[str] | None = None,
    step_time: float | None = None,
) -> Outlook:
    """Forecast one strategy on some machines.

    The step of one worker comes from `profile` (a record, a profile or a profiler trace), from `step_time` in seconds,
    or from the device of the machines. Raises WrongCommand if the strategy does not fit.
    """
    place = read_machines(machines)
    [name] = chosen_strategies(strategy)
    file = None if profile is None else Path(profile)
    known = calibrate(model, file=file, step=step_time, batch=batch_size, machines=place)
    fabric = place.fabric() if workers is None else place.fabric().resized(workers)
    coding, _ = assumed_coding(place)
    point = point_of(Run(model=model, batch_size=batch_size), name, fabric, known, coding)
    if point.outlook is None:
        raise WrongCommand(f"{strategy} on {fabric.size} workers", why=point.problem)
    return point.outlook

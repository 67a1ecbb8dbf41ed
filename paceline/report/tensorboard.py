"""Scalars for TensorBoard: loss per backward, figures that a script logged, rate per repeat, parts of the step."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import MissingPackage
from paceline.measure.record.record import Record
from paceline.race.results.standing import inside

Scalar = tuple[str, int, float]


def check() -> None:
    """Raise before the run starts if the package tensorboard is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingPackage("--tensorboard", package="tensorboard", extra="tensorboard")


def scalars(record: Record) -> Iterator[Scalar]:
    yield from (("loss", step, value) for step, value in enumerate(record.loss))
    for name, metric in record.metrics.items():
        steps = zip(metric["steps"], metric["values"], strict=True)
        yield from ((f"logged/{name}", step, value) for step, value in steps)
    yield from ((f"rate/{record.unit} per second", step, value) for step, value in enumerate(inside(record)))
    yield from ((f"step/{part} ms", 0, 1e3 * seconds) for part, seconds in record.breakdown.items())


def write_scalars(record: Record, folder: Path) -> None:
    """Write the scalars of a record as one run of TensorBoard, named after the record."""
    check()
    from torch.utils.tensorboard import SummaryWriter  # loads torch, which no other module of report does

    with SummaryWriter(str(folder / record.id)) as writer:
        for name, step, value in scalars(record):
            writer.add_scalar(name, value, step)
        writer.add_text("command", record.text)

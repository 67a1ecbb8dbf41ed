"""Train for epochs: an epoch uses every sample once and ends with an evaluation. Checkpoints are written on the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.errors import WrongCommand
from paceline.measure.record.rank_report import RankReport
from paceline.run.run import Run
from paceline.train.checkpoint import Checkpoints
from paceline.train.measurement import Measurement


def train_epochs(run: Run, measurement: Measurement) -> RankReport:
    """Train until the last epoch, or until the target is reached. Return the report of this rank."""
    training, comm = measurement.training, measurement.comm
    checkpoints = Checkpoints(run, training, comm) if run.checkpoint else None
    progress = checkpoints.resume() if checkpoints and run.resume else {}
    measurement.resume(progress)
    if training.feed.cursor.epoch >= (run.epochs or 0):
        raise WrongCommand(
            f"--epochs {run.epochs} with --resume",
            why=f"the checkpoint has {training.feed.cursor.epoch} epochs already",
            remedy=f"--epochs {training.feed.cursor.epoch + 1} or more",
        )
    measurement.begin()
    while training.feed.cursor.epoch < (run.epochs or 0):
        epoch = training.feed.cursor.epoch
        save = checkpoints.save if checkpoints else None
        for last, length in _pieces(run, training):
            measurement.epoch(length, first=training.feed.cursor.step == 0)
            if save and not last:
                save(measurement.progress())
        measurement.tell_epoch(epoch, run.epochs or 0)
        measurement.grade(epoch)
        ends = measurement.reached or epoch + 1 == run.epochs
        if save and (ends or not run.every or not training.pace.steps % run.every):
            save(measurement.progress())
        if ends:
            break
    return measurement.report()


def _pieces(run: Run, training: Any) -> Iterator[tuple[bool, int]]:
    """Cut the rest of an epoch where checkpoints are due. Yield (whether it is the last, its steps) for each piece."""
    left = training.feed.order.steps - training.feed.cursor.step
    while left:
        due = run.every - training.pace.steps % run.every if run.checkpoint and run.every else left
        length = min(left, due)
        left -= length
        yield not left, length

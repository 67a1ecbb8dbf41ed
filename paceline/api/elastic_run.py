"""The entry point of a member of `paceline run --membership elastic --model M`: a script like a user's own.

The run lies in the folder of the job: `paceline join ADDRESS -- python -m paceline.api.elastic_run` adds a worker.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from paceline.api.elastic import ElasticWorker, join_elastic
from paceline.elastic.launch import FOLDER, RUN
from paceline.engine.device import find
from paceline.errors import PacelineError, WrongCommand
from paceline.run.run import Run
from paceline.strategy import memberships
from paceline.train.build import workload_of
from paceline.workload import rates, sources
from paceline.workload.recipe import make_optimizer
from paceline.workload.sources._source import Streaming


def main() -> None:
    """Train the model of the run as a member of the job."""
    run = Run.model_validate_json((Path(os.environ[FOLDER]) / RUN).read_text())
    try:
        train(run, join_elastic(find()))
    except PacelineError as problem:
        sys.exit(f"error: {problem}")


def train(run: Run, worker: ElasticWorker) -> None:
    """Commit all steps of the run. Rank 0 prints the loss now and then."""
    source = sources.MENU.make(run.source)
    if isinstance(source, Streaming):
        raise WrongCommand(f"--source {run.source} with membership elastic", why="its samples have no numbers")
    workload = workload_of(run, source)
    model = workload.model
    optimizer = make_optimizer(run.optimizer, [p for p in model.parameters() if p.requires_grad])
    pace = worker.wrap(model, optimizer, memberships.MENU.make(str(run.membership)), run.clip_norm)
    order, samples = source.order(run.samples_per_step, run.seed), source.samples_of(workload)
    goal = steps_of(run, order.steps)
    rate = _rate_of(run, optimizer.param_groups[0]["lr"])
    for batch in worker.deal(pace, order, lambda ids: samples(torch.tensor(ids)), goal):
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(pace.steps / order.steps)
        loss = workload.loss(model, batch)
        loss.backward()
        if pace.step() and worker.rank == 0 and pace.steps % max(1, goal // 10) == 0:
            print(f"step {pace.steps}/{goal}: loss {loss.item():.4f}, {worker.size} members", flush=True)
    worker.close()


def steps_of(run: Run, per_epoch: int) -> int:
    """Return the steps that a run asks for: its epochs, or warm-up and repeats."""
    return run.epochs * per_epoch if run.epochs is not None else run.warmup + run.repeats * (run.steps or 10)


def _rate_of(run: Run, own: float) -> Any:
    if run.lr_schedule is None:
        return None
    schedule = rates.MENU.make(run.lr_schedule)
    return lambda time: schedule.rate(own, run.samples_per_step, time, run.epochs or 1)


if __name__ == "__main__":
    main()

"""Checkpoints of a run: every rank saves its own state, and rank 0 names the last complete set.

    DIR/latest.json                    {"step": 400, "workers": 2}, replaced after all ranks have written
    DIR/step-00000400/rank-0.snapshot  parameters, buffers, optimizer, residuals, random state, place in the data
                      rank-1.snapshot

A run that resumes with the same number of workers continues with the same bits. With another number, all ranks start
from the mean of the parameters and buffers, and from rank 0's optimizer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from paceline.comm.transport import Comm
from paceline.errors import DamagedFile, WrongCommand
from paceline.files.read import read_text
from paceline.files.snapshot import Snapshot, atomic
from paceline.run.run import Run, flag_of
from paceline.train.loop import Training
from paceline.train.saving import LATEST, read_state, remove_older

# Settings that must be the same in the run that resumes. The number of workers may differ.
SAME = (
    *("model", "classes", "image_size", "sequence_length", "strategy", "rule", "exchange", "topology", "schedule"),
    *("compressor", "source", "optimizer", "lr_schedule", "label_smoothing", "precision", "accumulate", "seed"),
)
# Parts of the state of a rank.
PARTS = (
    *("run", "rank", "workers", "threads", "pace", "model", "optimizer", "feed", "random"),
    *("losses", "samples", "progress"),
)


class Checkpoints:
    """The checkpoints of one run in a folder, written by all ranks together."""

    def __init__(self, run: Run, training: Training, comm: Comm) -> None:
        self._run, self._training, self._comm = run, training, comm
        self._folder = Path(str(run.checkpoint)).expanduser()
        if (self._folder / LATEST).exists():  # its files have the same names
            raise WrongCommand(
                f"--checkpoint {run.checkpoint}", why="it holds checkpoints of pace.save", remedy="another folder"
            )
        latest = self._latest()
        if latest and not run.resume:
            raise WrongCommand(
                f"--checkpoint {run.checkpoint}",
                why=f"it holds a checkpoint already, of step {latest['step']}",
                remedy="--resume to go on from it, or another folder",
            )

    def save(self, progress: dict[str, Any]) -> None:
        """Write this rank's state. When all ranks have written theirs, latest.json names the new checkpoint."""
        training = self._training
        step = training.pace.steps
        place = self._place(step)
        state = {
            "run": {name: getattr(self._run, name) for name in SAME} | {"global_batch": self._run.samples_per_step},
            "rank": self._comm.rank,
            "workers": self._comm.size,
            "threads": torch.get_num_threads(),
            "pace": training.pace.state_dict(),
            "model": dict(training.workload.model.state_dict()),
            "optimizer": training.optimizer.state_dict(),
            "feed": training.feed.state(),
            "random": torch.get_rng_state(),
            "losses": torch.tensor(training.losses, dtype=torch.float64),
            "samples": training.samples,
            "progress": progress,
        }
        Snapshot(state).save(place / f"rank-{self._comm.rank}.snapshot")
        self._comm.barrier()
        if self._comm.rank == 0:
            with atomic(self._folder / "latest.json") as stream:
                stream.write(json.dumps({"step": step, "workers": self._comm.size}).encode())
            remove_older(self._folder, place.name)

    def resume(self) -> dict[str, Any]:
        """Load the last checkpoint. Return the progress that was saved; empty if there is no checkpoint yet."""
        latest = self._latest()
        if not latest:
            if self._comm.rank == 0:
                print(f"no checkpoint in {self._folder} yet: training starts at the beginning", flush=True)
            return {}
        if latest["workers"] != self._comm.size:
            return self._resume_with_means(latest)
        state = self._read(latest["step"], self._comm.rank)
        training = self._training
        torch.set_num_threads(state["threads"])
        training.workload.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])
        training.pace.load_state_dict(state["pace"])
        training.losses, training.samples = state["losses"].tolist(), state["samples"]
        torch.set_rng_state(state["random"])
        return self._continue(state, latest["step"])

    def _continue(self, state: dict[str, Any], step: int) -> dict[str, Any]:
        self._training.feed.restore(state["feed"])
        if self._comm.rank == 0:
            print(f"resumed from step {step}, in epoch {state['feed']['epoch'] + 1}", flush=True)
        return dict(state["progress"])

    def _resume_with_means(self, latest: dict[str, int]) -> dict[str, Any]:
        """Load the mean of all ranks' parameters. Used if the number of workers has changed."""
        first = self._read(latest["step"], 0)
        model = first["model"]
        for rank in range(1, latest["workers"]):
            theirs = self._read(latest["step"], rank)["model"]
            for name, tensor in model.items():
                if tensor.is_floating_point():
                    tensor += (theirs[name] - tensor) / (rank + 1)
        self._training.workload.model.load_state_dict(model)
        self._training.optimizer.load_state_dict(first["optimizer"])
        self._training.pace.steps = latest["step"]
        if self._comm.rank == 0:
            print(
                f"the checkpoint is of {latest['workers']} workers: {self._comm.size} start from the mean of their "
                "parameters, without what compressors and rules kept",
                flush=True,
            )
        return self._continue(first, latest["step"])

    def _read(self, step: int, rank: int) -> dict[str, Any]:
        path = self._place(step) / f"rank-{rank}.snapshot"
        state = read_state(path, PARTS)
        now = {name: getattr(self._run, name) for name in SAME} | {"global_batch": self._run.samples_per_step}
        for name, value in now.items():
            if state["run"].get(name) != value:
                raise WrongCommand(
                    f"--resume with {flag_of(name)} {value}",
                    why=f"the checkpoint in {self._folder} was written with {state['run'].get(name)}",
                    remedy="the command of that run, or another folder",
                )
        return state

    def _place(self, step: int) -> Path:
        return self._folder / f"step-{step:08d}"

    def _latest(self) -> dict[str, int]:
        path = self._folder / "latest.json"
        if not path.exists():
            return {}
        try:
            content = json.loads(read_text(path, 1 << 16))
            return {"step": int(content["step"]), "workers": int(content["workers"])}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise DamagedFile(path, 0, why="it does not name a checkpoint") from None

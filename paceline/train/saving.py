"""Save and load the whole state of a training with one call on every rank.

    FOLDER/step-00000812/rank-0.snapshot    model, optimizer, state of the pace, and values of the script
                         rank-1.snapshot    the same if replicas differ; else only buffers and state of the pace
    FOLDER/latest                           step-00000812, written when all ranks have saved

If ranks are killed while they save, `latest` stays as it was. The last two checkpoints are kept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import NoRoom, WrongCommand
from paceline.files.snapshot import Snapshot, atomic

if TYPE_CHECKING:
    from paceline.train.pace import Pace

LATEST = "latest"
OF_RUNS = "latest.json"  # the same file of `paceline run --checkpoint`
KEPT = 2
ALONE = ("pace", "model", "optimizer", "extra")  # parts of a state that `save_alone` has written
WHOLE = ("size", "buffers", *ALONE)  # and of one that `save` has written
_STEP = re.compile(r"step-(\d{8,})")


def save(pace: Pace, folder: Path, extra: Mapping[str, Any]) -> None:
    """Write the state of this rank. When all ranks have written theirs, `latest` names the checkpoint. Collective."""
    _refuse_runs(folder)
    pace.finish()
    rank, name = pace.comm.rank, f"step-{pace.steps:08d}"
    whole = rank == 0 or pace.replicas_differ
    state = {
        "rank": rank,
        "size": pace.comm.size,
        "pace": pace.state_dict(),
        "buffers": dict(pace.model.named_buffers()),
        "model": dict(pace.model.state_dict()) if whole else None,
        "optimizer": pace.optimizer.state_dict() if whole else None,
        "extra": dict(extra),
    }
    (folder / name).mkdir(parents=True, exist_ok=True)
    Snapshot(state).save(_file(folder / name, rank))
    pace.comm.barrier()
    if rank == 0:
        _point_at(folder, name)
    pace.comm.barrier()


def save_alone(state: Mapping[str, Any], steps: int, folder: Path, known: int | None = None) -> str:
    """Write a checkpoint from one process that has the whole state, in the format of `save`.

    The previous checkpoint stays until this one is complete. If it cannot be written, print and return the reason.
    So does a process that was stopped while others went on: if the latest checkpoint is not the one of step `known`,
    somebody else has written it, and if it is a later one, it stays the latest.
    """
    _refuse_runs(folder)
    place = folder / f"step-{steps:08d}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        Snapshot({"rank": 0, "size": 1, **state}).save(_file(place, 0))
        there = pointed_at(folder)
        if known is not None and there != known and there > steps:
            text = f"the checkpoint of step {steps} is not the latest: another worker has written that of step {there}"
            print(f"paceline: {text}", file=sys.stderr, flush=True)
            return text
        _point_at(folder, place.name)
    except (NoRoom, OSError) as problem:
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
        text = f"the checkpoint of step {steps} was not written, and the one before stays: {problem}"
        print(f"paceline: {text}", file=sys.stderr, flush=True)
        return text
    return ""


def latest_of(folder: Path) -> Path:
    """Return the folder of the last complete checkpoint."""
    latest = folder / LATEST
    if not latest.is_file():
        raise WrongCommand(f"{folder} has no checkpoint", why=f"there is no file {latest}", remedy="pace.save(folder)")
    name = latest.read_text().strip()
    if not _STEP.fullmatch(name):
        raise WrongCommand(f"{latest} names no checkpoint", why=f"it says {name[:40]!r}")
    return folder / name


def load_alone(folder: Path) -> dict[str, Any]:
    """Return the last complete checkpoint that `save_alone` has written."""
    return read_state(_file(latest_of(folder), 0), ALONE)


def load(pace: Pace, folder: Path) -> dict[str, Any]:
    """Load the last complete checkpoint of a folder and return the `extra` values of the script. Collective."""
    name = latest_of(folder).name
    first, own = _file(folder / name, 0), _file(folder / name, pace.comm.rank)
    mine = read_state(own, WHOLE) if own.is_file() else None
    whole = mine if mine is not None and mine["model"] is not None else read_state(first, WHOLE)
    if whole["size"] != pace.comm.size and (pace.rank_dependent or whole["pace"]["rank_dependent"]):
        raise WrongCommand(
            f"{folder / name} was saved by {whole['size']} ranks, and this job has {pace.comm.size}",
            why="a part of the state belongs to single ranks",
            remedy=f"-np {whole['size']}, or load the model and the optimizer of {first} alone",
        )
    mine = mine or whole
    pace.model.load_state_dict(whole["model"])
    buffers = dict(pace.model.named_buffers())
    for key, value in mine["buffers"].items():
        buffers[key].data.copy_(value)
    pace.optimizer.load_state_dict(whole["optimizer"])
    pace.load_state_dict(mine["pace"])
    extra: dict[str, Any] = mine["extra"]
    return extra


def read_state(path: Path, parts: Collection[str]) -> dict[str, Any]:
    """Return the state in a snapshot. Raises if it lacks one of these parts."""
    state = Snapshot.load(path).state
    missing = [part for part in parts if not isinstance(state, dict) or part not in state]
    if missing:
        raise WrongCommand(
            f"{path} is no checkpoint of this kind",
            why=f"it is a snapshot without {', '.join(missing)}",
            remedy="the folder that this program wrote its checkpoints to",
        )
    return dict(state)


def _file(step: Path, rank: int) -> Path:
    return step / f"rank-{rank}.snapshot"


def pointed_at(folder: Path) -> int:
    """Return the step of the last complete checkpoint, or 0 if there is none."""
    try:
        name = _STEP.fullmatch((folder / LATEST).read_text().strip())
    except (OSError, ValueError):
        return 0
    return int(name[1]) if name else 0


def _point_at(folder: Path, name: str) -> None:
    """Make this checkpoint the latest, and remove older ones, so that KEPT checkpoints remain."""
    with atomic(folder / LATEST) as stream:
        stream.write(f"{name}\n".encode())
    remove_older(folder, name)


def remove_older(folder: Path, name: str) -> None:
    """Remove checkpoints of earlier steps than this one, so that KEPT remain. Only files of checkpoints are removed."""
    match = _STEP.fullmatch(name)
    assert match is not None
    folders = [
        (_STEP.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir() and not path.is_symlink()
    ]
    steps = {int(step[1]): path for step, path in folders if step is not None and int(step[1]) < int(match[1])}
    for number in sorted(steps)[: 1 - KEPT]:
        old = steps[number]
        for file in [*old.glob("rank-*.snapshot"), *old.glob(".rank-*.snapshot.*.draft")]:
            file.unlink()
        if not any(old.iterdir()):
            old.rmdir()


def _refuse_runs(folder: Path) -> None:
    """Raise if `paceline run --checkpoint` uses the folder: its files have the same names."""
    if (folder / OF_RUNS).exists():
        raise WrongCommand(
            f"{folder}", why="it holds checkpoints of paceline run --checkpoint", remedy="another folder"
        )


def check_own(state: Mapping[str, Any], rank: int, size: int) -> None:
    """Raise if a rank loads the state of another rank although state differs between ranks.

    Rules that save their rank check it themselves, and start with fresh state on all ranks.
    """
    if "rank" in state.get("rule", {}) and not any(engine.get("owes") for engine in state.get("engines", ())):
        return
    saved = (state.get("rank", rank), state.get("size", size))
    if state.get("rank_dependent") and saved != (rank, size):
        raise WrongCommand(
            f"rank {rank} of {size} loads the state that rank {saved[0]} of {saved[1]} saved",
            why="residuals of a compressor, and models that differ, belong to the rank that saved them",
            remedy=f"the file that rank {rank} saved; pace.save(folder) and pace.load(folder), which keep a file for "
            "every rank; or load the model and the optimizer alone",
        )


def check_vectors(state: Mapping[str, Any], count: int) -> None:
    """Raise if the state was saved with another number of exchanged vectors, for example with other fragments."""
    saved = len(state["engines"])
    if saved != count:
        raise WrongCommand(
            f"a saved state of {saved} exchanged vectors, loaded where there are {count}",
            why="the rule or its settings, such as fragments, are not those of the checkpoint",
            remedy="wrap(...) with the rule of the checkpoint, or load the model and the optimizer alone",
        )

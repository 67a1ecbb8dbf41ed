"""Variables and files by which the launcher of an elastic job announces the coordinator to its processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from paceline.elastic.frames import ABSENT, FINISHED, make_token
from paceline.errors import WrongCommand

CHOICES = "choices.json"  # in that folder: the options of the command line, for workers that join later
RUN = "run.json"  # in that folder: the run, if the job trains a model and no script
SPEC = "elastic.json"  # in the folder of a job on several hosts: numbers of its coordinator, see write_spec
MARK = "paceline-job"  # in that folder: shows that paceline created the folder and may write to it
FOLDER = "PACELINE_ELASTIC"  # the folder with address and token of the coordinator


def kept_folder(folder: Path) -> Path:
    """Prepare a new or empty folder for a job, or the folder that an earlier start of the job has left.

    Files are written here under fixed names, so a folder that holds files of the user is refused.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / MARK).exists():
        if any(folder.iterdir()):
            raise WrongCommand(
                f"--job {folder}", why="it holds files, and no earlier job has made it", remedy="a new or empty folder"
            )
        (folder / MARK).touch(mode=0o600, exist_ok=False)
    if folder.stat().st_mode & 0o077:
        raise WrongCommand(
            f"--job {folder}", why="others can read it, and it holds the job's token", remedy=f"chmod 700 {folder}"
        )
    if (folder / FINISHED).exists():
        raise WrongCommand(f"--job {folder}", why="the job in it has made all its steps", remedy="another folder")
    for path in folder.glob(f"{ABSENT}-*"):
        path.unlink()
    make_token(folder)
    return folder


def coordinator_command(
    folder: Path, *, start: int, least: int, most: int, task: int, rule: str = "shm", interface: str = "127.0.0.1"
) -> list[str]:
    """Return the command that starts the coordinator, or starts it again on its journal."""
    values = {"--start": start, "--min": least, "--max": most, "--task": task, "--rule": rule, "--interface": interface}
    words = [word for flag, value in values.items() for word in (flag, str(value))]
    return [sys.executable, "-m", "paceline.elastic", str(folder), *words]


def write_spec(folder: Path, *, start: int, least: int, most: int, task: int, restart: str) -> None:
    """Write what agents of other hosts need to know of an elastic job into the folder whose JSON files they get."""
    spec = {"start": start, "least": least, "most": most, "task": task, "restart": restart}
    (folder / SPEC).write_text(json.dumps(spec))


def read_spec(folder: Path) -> dict[str, Any] | None:
    """Return what write_spec has written, or None for a job of fixed members."""
    path = folder / SPEC
    return dict(json.loads(path.read_text())) if path.exists() else None


def far_folder(folder: Path, token: str, address: str, port: int) -> Path:
    """Prepare the folder of a coordinator that others reach at an address; its port was chosen before."""
    kept = kept_folder(folder)
    (kept / "token").write_text(token)
    (kept / "address").write_text(f"{address}:{port}\n")
    return kept

"""Variables and files by which the launcher of an elastic job announces the coordinator to its processes."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.elastic.frames import ABSENT, FINISHED, make_token
from paceline.errors import WrongCommand

CHOICES = "choices.json"  # in that folder: the options of the command line, for workers that join later
RUN = "run.json"  # in that folder: the run, if the job trains a model and no script
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


def coordinator_command(folder: Path, *, start: int, least: int, most: int) -> list[str]:
    """Return the command that starts the coordinator, or starts it again on its journal."""
    numbers = {"--start": start, "--min": least, "--max": most}
    words = [word for flag, number in numbers.items() for word in (flag, str(number))]
    return [sys.executable, "-m", "paceline.elastic.coordinator", str(folder), *words]

"""How the launcher of an elastic job tells its processes where the coordinator is."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.elastic.frames import ABSENT, FINISHED, make_token
from paceline.errors import WrongCommand

CHOICES = "choices.json"  # in that folder: the options of the command line, for workers that join later
FOLDER = "PACELINE_ELASTIC"  # the folder with address and token of the coordinator


def kept_folder(folder: Path) -> Path:
    """Prepare the folder of a job; one that an earlier start has left is gone on with."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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

"""How the launcher of an elastic job tells its processes where the coordinator is."""

from __future__ import annotations

import sys
from pathlib import Path

CHOICES = "choices.json"  # in that folder: the options of the command line, for workers that join later
FOLDER = "PACELINE_ELASTIC"  # the folder with address and token of the coordinator


def coordinator_command(folder: Path, *, start: int, least: int, most: int) -> list[str]:
    """Return the command that starts the coordinator, or starts it again on its journal."""
    numbers = {"--start": start, "--min": least, "--max": most}
    words = [word for flag, number in numbers.items() for word in (flag, str(number))]
    return [sys.executable, "-m", "paceline.elastic.coordinator", str(folder), *words]

"""Remove what killed launchers left behind: folders, namespaces and control groups.

Nothing that a running process owns is touched. If nothing was left behind, no program is started.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from paceline.cluster.lab import network, quota
from paceline.cluster.owner import is_abandoned

KEPT = "kept"  # a file in the folder of a failed job, whose error message names the logs there
DAYS = 7  # days for which the logs of a failed job are kept


def sweep() -> None:
    """Delete what killed launchers left behind, and the logs of jobs that failed more than a week ago."""
    _sweep_folders(Path(tempfile.gettempdir()))
    network.sweep()
    quota.sweep()


def lab_leftovers() -> list[str]:
    """Return the names of namespaces and groups that killed labs left behind. Removing them may need root."""
    return [*network.abandoned(), *(group.name for group in quota.abandoned())]


def _sweep_folders(place: Path) -> None:
    for folder in place.glob("paceline-*"):
        with suppress(OSError):
            if is_abandoned(folder.name) and folder.stat().st_uid == os.getuid() and not _still_kept(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _still_kept(folder: Path) -> bool:
    """Return whether this is the folder of a job that failed within the last week. Its logs are kept."""
    try:
        return time.time() - (folder / KEPT).stat().st_mtime < DAYS * 86400
    except FileNotFoundError:
        return False

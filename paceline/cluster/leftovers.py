"""Remove what killed launchers left behind: folders, namespaces and control groups.

Things that a running process owns are not touched, and no program is started if nothing was left.
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
DAYS = 7  # that the logs of a failed job are kept


def sweep() -> None:
    """Delete what launchers that are gone left behind, and the logs of jobs that failed more than a week ago."""
    _sweep_folders(Path(tempfile.gettempdir()))
    network.sweep()
    quota.sweep()


def lab_leftovers() -> list[str]:
    """Return the names of what killed labs left; removing it may need other rights."""
    return [*network.abandoned(), *(group.name for group in quota.abandoned())]


def _sweep_folders(place: Path) -> None:
    for folder in place.glob("paceline-*"):
        with suppress(OSError):
            if is_abandoned(folder.name) and folder.stat().st_uid == os.getuid() and not _still_kept(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _still_kept(folder: Path) -> bool:
    """Whether a job failed here so recently that its logs stay."""
    try:
        return time.time() - (folder / KEPT).stat().st_mtime < DAYS * 86400
    except FileNotFoundError:
        return False

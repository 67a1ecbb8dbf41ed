"""The folder of a job: temporary, only for its user, kept if a worker failed so that its logs can be read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.errors import WorkerFailed
from paceline.lab.owner import is_abandoned, owned_prefix

KEPT = "kept"  # a file that says so


@contextmanager
def job_folder() -> Iterator[Path]:
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=owned_prefix()))
    try:
        yield folder
    except WorkerFailed:
        shutil.rmtree(folder / "store", ignore_errors=True)
        (folder / KEPT).touch()
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Take away what launchers left that were killed: nobody was told of it."""
    for folder in place.glob("paceline-*"):
        with suppress(OSError):
            if is_abandoned(folder.name) and folder.stat().st_uid == os.getuid() and not (folder / KEPT).exists():
                shutil.rmtree(folder, ignore_errors=True)

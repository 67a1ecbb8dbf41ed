"""The folder of a job: temporary, only for its user, kept if a worker failed so that its logs can be read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.errors import WorkerFailed


@contextmanager
def job_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="paceline-"))
    try:
        yield folder
    except WorkerFailed:
        shutil.rmtree(folder / "store", ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)

"""The temporary folder of a job. Only its user can read it. If a worker failed, it is kept for its logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.cluster.leftovers import KEPT, sweep
from paceline.cluster.owner import owned_prefix
from paceline.errors import WorkerFailed


@contextmanager
def job_folder() -> Iterator[Path]:
    sweep()
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

"""Any script on several workers: `paceline run -np 4 -- python my_train.py`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import WrongCommand
from paceline.jobs.folder import job_folder
from paceline.jobs.measure import OnLine
from paceline.launchers.local import Local


def launch(
    argv: Sequence[str],
    *,
    workers: int,
    choices: Mapping[str, Any],
    servers: int = 0,
    threads: int | None = None,
    on_line: OnLine | None = None,
) -> None:
    """Start the script on every worker; what was chosen on the command line reaches `join` and `wrap`."""
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    environ = {**os.environ, "PACELINE_CHOICES": json.dumps(dict(choices))}
    if threads:
        environ["OMP_NUM_THREADS"] = str(threads)
    with (
        job_folder() as folder,
        Local().start(
            argv,
            workers=workers,
            servers=servers,
            folder=folder,
            environ=environ,
            prefix=workers > 1,
            on_line=on_line,
        ) as job,
    ):
        job.wait()

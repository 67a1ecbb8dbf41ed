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
from paceline.jobs.places import places_of
from paceline.launchers.local import Local
from paceline.run import Run


def launch(
    argv: Sequence[str],
    *,
    run: Run,
    choices: Mapping[str, Any],
    servers: int = 0,
    on_line: OnLine | None = None,
) -> None:
    """Start the script on every worker; what was chosen on the command line reaches `join` and `wrap`."""
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    environ = {**os.environ, "PACELINE_CHOICES": json.dumps(dict(choices))}
    if run.threads:
        environ["OMP_NUM_THREADS"] = str(run.threads)
    with (
        job_folder() as folder,
        places_of(run) as places,
        Local().start(
            argv,
            workers=run.workers,
            servers=servers,
            folder=folder,
            environ=environ,
            prefix=run.workers > 1,
            on_line=on_line,
            place=places.place,
        ) as job,
    ):
        job.wait()

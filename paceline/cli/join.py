"""paceline join: one more worker for a running elastic job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.elastic.status import TOKEN, ask, contact_of, environment_of, token_of
from paceline.errors import WrongCommand

Address = Annotated[str, typer.Argument(help="HOST:PORT, as the job printed it when it started.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help=f"The file with the job's token; without it, ${TOKEN} is used.")
]


@app.command()
def join(context: typer.Context, address: Address, token_file: TokenFile = None) -> None:
    """Add a worker on this host to a running elastic job. Give its script after --.

    The job prints its address and the file with its token when it starts. The worker gets the state of training from a
    member, between two steps. It leaves when it gets SIGTERM.
    """
    argv = context.obj
    if not argv:
        raise WrongCommand("nothing to start", remedy=f"paceline join {address} -- python my_train.py")
    if shutil.which(argv[0]) is None:
        raise WrongCommand(f"{argv[0]!r} cannot be started", why="there is no such program", remedy="-- python SCRIPT")
    token = token_of(token_file, os.environ)
    state = ask(address, token)
    if state["finished"]:
        raise WrongCommand(f"the job at {address} has made all its steps", remedy="a job that is still running")
    environ = environment_of(state, contact_of(state, address, token), token, os.environ)
    os.execvpe(argv[0], argv, environ)  # signals reach the worker itself

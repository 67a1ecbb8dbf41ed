"""paceline watch: the state of a running elastic job."""

from __future__ import annotations

import json as jsons
import os
import shutil
import sys
import time
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.join import Address, TokenFile
from paceline.elastic.status import ask, token_of
from paceline.elastic.view import detail_lines, redrawn, server, shown, summary_line
from paceline.errors import PacelineError, PeerLost
from paceline.measure.record.record import check_writable, write


@app.command()
def watch(
    address: Address,
    token_file: TokenFile = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, with members and incidents.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds between two updates.")] = 1.0,
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve", min=0, max=65535, help="Serve a page and JSON on this port of 127.0.0.1; 0 takes a free one."
        ),
    ] = None,
    json: o.JsonFile = None,
) -> None:
    """Show members, rate and incidents of a running elastic job until it ends.

    On a terminal the display is updated in place. If the output is a pipe or a file, one line is printed per change.
    """
    if json is not None:
        check_writable(json)
    token = token_of(token_file, os.environ)
    state = ask(address, token)
    if serve is not None:
        _serve(address, token, serve)
        return
    if once:
        _write(json, state)
        print(*detail_lines(state, _width()), sep="\n", flush=True)
        return
    _follow(address, token, state, seconds, json)
    print("the job has ended", flush=True)


def _follow(address: str, token: str, state: dict[str, Any], seconds: float, json: Any) -> None:
    """Show the state, and show it again whenever it has changed, until the job ends."""
    line, height, terminal = "", 0, sys.stdout.isatty()
    while True:
        _write(json, state)
        if terminal:
            lines = detail_lines(state, _width())[: shutil.get_terminal_size().lines - 1]
            print(redrawn(lines, height, _width()), end="", flush=True)
            height = len(lines)
        elif summary_line(state) != line:
            line = summary_line(state)
            print(line, flush=True)
        time.sleep(seconds)
        try:
            state = ask(address, token)
        except PeerLost:
            return


def _write(json: Any, state: dict[str, Any]) -> None:
    if json is not None:
        write(json, jsons.dumps(shown(state), indent=1) + "\n")


def _width() -> int:
    return shutil.get_terminal_size().columns


def _serve(address: str, token: str, port: int) -> None:
    """Answer requests of a browser until the job ends."""
    ended = []

    def look() -> dict[str, Any] | None:
        try:
            return ask(address, token)
        except PeerLost:
            ended.append(True)
            return None

    try:
        page = server(port, token, look)
    except OSError as problem:
        raise PacelineError(f"--serve {port}", why=problem.strerror or str(problem), remedy="--serve 0") from None
    with page:
        page.timeout = 1.0
        # The part after # stays in the browser: it is in no request, and in no log.
        print(f"http://127.0.0.1:{page.server_address[1]}/#TOKEN, with the job's token for TOKEN", flush=True)
        while not ended:
            page.handle_request()
            look()
    print("the job has ended", flush=True)

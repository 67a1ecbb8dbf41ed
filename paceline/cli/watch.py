"""paceline watch: the state of a running elastic job."""

from __future__ import annotations

import json as jsons
import os
import time
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.join import Address, TokenFile
from paceline.elastic.status import ask, token_of
from paceline.errors import PeerLost
from paceline.measure.record.record import check_writable, write

NOT_SHOWN = ("kind", "folder")


@app.command()
def watch(
    address: Address,
    token_file: TokenFile = None,
    once: Annotated[bool, typer.Option("--once", help="Print the state once, with members and incidents.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="Seconds between two updates.")] = 1.0,
    json: o.JsonFile = None,
) -> None:
    """Show generation, members and committed steps of a running elastic job: one line per change, until it ends."""
    if json is not None:
        check_writable(json)
    token = token_of(token_file, os.environ)
    state, line = ask(address, token), ""
    while True:
        if json is not None:
            shown = {name: value for name, value in state.items() if name not in NOT_SHOWN}
            write(json, jsons.dumps(shown, indent=1) + "\n")
        if line_of(state) != line:
            line = line_of(state)
            print(line, flush=True)
        if once:
            _print_details(state)
            return
        time.sleep(seconds)
        try:
            state = ask(address, token)
        except PeerLost:
            print("the job has ended", flush=True)
            return


def line_of(state: dict[str, Any]) -> str:
    """Return the state on one line."""
    members = f"{len(state['members'])} members"
    waiting = f", {state['waiting']} waiting" if state["waiting"] else ""
    end = ", all steps are made" if state["finished"] else ""
    return f"generation {state['generation']}, {members}{waiting}, {state['steps']} steps committed{end}"


def _print_details(state: dict[str, Any]) -> None:
    for rank, member in enumerate(state["members"]):
        print(f"  rank {rank}: {member}")
    for incident in state["incidents"]:
        when = time.strftime("%H:%M:%S", time.localtime(incident["at"]))
        who = incident.get("member") or f"{len(incident.get('members', ()))} members"
        after = f", {incident['seconds']:.2f} s to the next commit" if "seconds" in incident else ""
        print(f"  {when} {incident['what']}: {who} (generation {incident.get('generation')}){after}")

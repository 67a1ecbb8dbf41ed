"""The state of a running job. Its coordinator sends it to any process that shows the token.

paceline join   needs the folder of the job and the number of workers that it was started with
paceline watch  shows generation, members, committed steps, their rate, and the last incidents
paceline chaos  needs the processes of the members and of the coordinator
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.elastic.contact import FAR
from paceline.elastic.frames import (
    TRUSTED,
    BrokenFrame,
    Inbox,
    Message,
    connect_to,
    count_in,
    encode,
    names_in,
    parse_address,
)
from paceline.elastic.journal import Journal
from paceline.elastic.launch import CHOICES, FOLDER
from paceline.elastic.progress import rates
from paceline.elastic.protocol import Group, Registry
from paceline.errors import PacelineError, PeerLost, WrongCommand
from paceline.files.read import read_text

TOKEN = "PACELINE_TOKEN"  # the variable that holds the token of a job
LAST = 10  # incidents in a status
SHOWN = 480  # rows of progress, from which the rates of the last two minutes are made
SECONDS = 10.0  # seconds to wait for an answer


def message_of(group: Group) -> Message:
    """Return the message that announces a generation to its members."""
    return {
        "kind": "group",
        "generation": group.generation,
        "members": list(group.members),
        "steps": group.steps,
        "fresh": list(group.fresh),
        "lengths": list(group.lengths),
    }


def status_of(folder: Path, registry: Registry, journal: Journal, start: int) -> Message:
    group, rows = registry.group, journal.history(SHOWN)
    return {
        "kind": "status",
        "pid": os.getpid(),
        "at": time.time(),
        "folder": str(folder),
        "rule": registry.rule,
        "choices": choices.read_text() if (choices := folder / CHOICES).exists() else "{}",
        "start": start,
        "most": registry.maximum,
        "generation": group.generation if group else 0,
        "members": list(group.members) if group else [],
        "lengths": list(group.lengths) if group else [],
        "waiting": len(registry.waiting),
        "steps": registry.watermark,
        "finished": registry.finished,
        "rate": [[round(at, 2), round(rate, 3), members] for at, rate, members in rates(rows)],
        "parts": rows[-1].parts if rows else {},
        "incidents": list(journal.incidents(LAST)),
    }


def token_of(path: Path | None, environ: Mapping[str, str]) -> str:
    """Return the job's token from a file or the environment.

    There is no flag for it, because all users of a machine can read command lines.
    """
    if path is not None:
        return read_text(path, 1 << 10).strip()
    if environ.get(TOKEN):
        return environ[TOKEN].strip()
    raise WrongCommand(
        "no token",
        why="a job admits only those who show its token",
        remedy=f"--token-file FILE, or {TOKEN} in the environment",
    )


def ask(address: str, token: str) -> dict[str, Any]:
    """Return the state of the job whose coordinator listens at an address."""
    parse_address(address)
    try:
        with connect_to(address, SECONDS) as link:
            link.sendall(encode({"kind": "status", "token": token}))
            inbox = Inbox(TRUSTED)
            while block := link.recv(1 << 16):
                for message in inbox.feed(block):
                    return _checked(message, address)
    except OSError as problem:
        raise PeerLost(
            f"no job at {address}",
            why=problem.strerror or str(problem),
            remedy="the address that a running job printed",
        ) from None
    raise WrongCommand(f"the job at {address} refused the token", remedy="the token file that the job printed")


def _checked(state: Message, address: str) -> Message:
    """Return the status that was received. Raises if the process at this address is not a coordinator."""
    try:
        for name in ("start", "most", "generation", "waiting", "steps"):
            count_in(state, name)
        names_in(state, "members")
        if state.get("rule") not in ("shm", "tcp") or not isinstance(state.get("choices"), str):
            raise BrokenFrame("a status without rule or choices")
        if not isinstance(state.get("finished"), bool) or not state["start"]:
            raise BrokenFrame("a status of a job without workers")
        if not isinstance(state.get("folder"), str) or not all(isinstance(one, dict) for one in state["incidents"]):
            raise BrokenFrame("a status without folder or incidents")
    except (BrokenFrame, KeyError, TypeError) as problem:
        raise WrongCommand(
            f"no job at {address}",
            why=f"its answer is no status: {problem}",
            remedy="the address that a running job printed",
        ) from None
    return state


def contact_of(state: Mapping[str, Any], address: str, token: str) -> str:
    """Return where a worker of this host finds the coordinator: the job's folder, or tcp://ADDRESS.

    The folder is compared with the token, so that a wrong address cannot make a worker run anything.
    """
    folder = Path(str(state["folder"]))
    try:
        kept = read_text(folder / "token", 1 << 10).strip()
    except (OSError, ValueError, PacelineError):
        kept = ""
    if kept == token:
        return str(folder)
    if state["rule"] == "tcp":
        return f"{FAR}{address}"
    raise WrongCommand(
        f"the job's folder {folder} cannot be read here",
        why="its workers share memory, so that all run on one host and as one user",
        remedy="the same command on the host, and as the user, of the job; or a job with --comm tcp",
    )


def environment_of(state: Mapping[str, Any], contact: str, token: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker that joins: that of this process, plus what the launcher sets."""
    start = int(state["start"])
    kept = {name: value for name, value in environ.items() if name != TOKEN}
    return {
        **kept,
        **({TOKEN: token} if contact.startswith(FAR) else {}),
        FOLDER: contact,
        "RANK": str(start + len(state["members"])),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(start),
        "PACELINE_CHOICES": str(state["choices"]),
        "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // start))),
    }

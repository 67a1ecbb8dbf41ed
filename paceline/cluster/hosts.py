"""Read hosts from options and files, and assign ranks to them.

-H a:4,b:4                  name:slots, with user@ in front if it differs
--hostfile FILE             one host per line: `a:4`, or `a slots=4` as MPI writes it; # starts a comment
--cluster FILE              TOML, with everything that may differ between hosts:

    interface = "eth1"      # keys before the first [[hosts]] hold for all hosts
    python = "/opt/venv/bin/python"
    [[hosts]]
    name = "a"
    slots = 4
    environ = { DATA = "/data" }

--map-by slot               a a a a b b b b       fill one host after the other
--map-by node               a b a b a b a b       deal ranks round-robin
--map-by rankfile:FILE      one line per rank: `rank 0=a`
--map-by 0,1,1,0            the number of the host of each rank
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from paceline.errors import WrongCommand, short
from paceline.files.read import read_text
from paceline.files.toml import read_toml
from paceline.types import Host

MOST_SLOTS = 1 << 16
_NAME = r"(?:(?P<user>[A-Za-z0-9_][\w.\-]*)@)?(?P<name>[A-Za-z0-9_][\w.\-]*|\[[0-9A-Fa-f:.]+\])"
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")  # a name, or an IPv6 address
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_SHORT = re.compile(rf"{_NAME}(?::(?P<slots>-?\d{{1,18}}))?", re.ASCII)
_MPI = re.compile(rf"{_NAME}(?P<rest>(?:\s+[\w\-]+\s*=\s*\S+)*)")
_RANK = re.compile(rf"rank\s+(?P<rank>\d{{1,9}})\s*=\s*{_NAME}(?:\s+slots?\s*=\s*\S+)?")


class HostEntry(BaseModel):
    """One [[hosts]] of a cluster file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    slots: int | None = None
    address: str = ""
    interface: str | None = None
    python: str | None = None
    folder: str | None = None
    port: int | None = None
    user: str | None = None
    identity: str | None = None
    environ: dict[str, str] = {}


class ClusterFile(BaseModel):
    """A cluster file: the hosts, and defaults for all of them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: list[HostEntry]
    slots: int = 1
    interface: str = ""
    python: str = ""
    folder: str = ""
    port: int = 0
    user: str = ""
    identity: str = ""
    environ: dict[str, str] = {}


def read_hosts(text: str) -> tuple[Host, ...]:
    """Read hosts from text such as `a:4,b:4`."""
    return _distinct([_host(word.strip(), f"-H {short(text)}") for word in text.split(",")], f"-H {short(text)}")


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """Read a hostfile in either form. Errors name the line."""
    hosts: list[Host] = []
    numbers: list[int] = []
    for number, line in _lines(path):
        where = f"{path}, line {number}: {short(line)}"
        numbers.append(number)
        hosts.append(_host(line, where) if _SHORT.fullmatch(line) else _of_mpi(line, where))
    if not hosts:
        raise WrongCommand(f"--hostfile {path}", why="it names no host", remedy="one line for each host: a slots=4")
    return _distinct(hosts, f"--hostfile {path}", numbers)


def read_cluster(path: Path) -> tuple[Host, ...]:
    """Read a cluster file."""
    table = read_toml(path, ClusterFile)
    if not table.hosts:
        raise WrongCommand(f"--cluster {path}", why="it names no host", remedy='[[hosts]] with name = "a", slots = 4')
    common = table.model_dump(exclude={"hosts", "environ"})
    hosts = []
    for entry in table.hosts:
        own = entry.model_dump(exclude={"environ"}, exclude_none=True)
        host = Host(**{**common, **own, "environ": {**table.environ, **entry.environ}})
        hosts.append(_checked(host, f"{path}, host {short(entry.name)}"))
    return _distinct(hosts, f"--cluster {path}")


def written(hosts: Sequence[Host]) -> str:
    """Return hosts in the form `a:4,b:4`. Workers need no more than this."""
    return ",".join(f"{host.name}:{host.slots}" for host in hosts)


def slots_of(hosts: Sequence[Host]) -> int:
    return sum(host.slots for host in hosts)


def mapped(hosts: Sequence[Host], workers: int, by: str = "slot", servers: int = 0) -> list[Host]:
    """Return the host of each rank. Servers follow the workers, and are dealt to the hosts in turn."""
    _check_room(hosts, workers)
    if by.startswith("rankfile:"):
        order = _by_rankfile(hosts, workers, Path(by.removeprefix("rankfile:")))
    elif by == "slot":
        order = [host for host in hosts for _ in range(host.slots)][:workers]
    elif by == "node":
        order = _round_robin(hosts, workers)
    elif re.fullmatch(r"\d{1,6}(,\d{1,6})*", by):
        order = _by_number(hosts, workers, [int(word) for word in by.split(",")])
    else:
        why = "it is slot, node, rankfile:FILE or 0,1,1,0"
        raise WrongCommand(f"--map-by {short(by)}", why=why, remedy="--map-by slot")
    return order + [hosts[number % len(hosts)] for number in range(servers)]


def _check_room(hosts: Sequence[Host], workers: int) -> None:
    room = slots_of(hosts)
    if workers > room:
        raise WrongCommand(
            f"-np {workers} on {written(hosts)}",
            why=f"the hosts have {room} slot{'s' if room > 1 else ''} in all",
            remedy=f"-np {room}, or more slots",
        )


def _round_robin(hosts: Sequence[Host], workers: int) -> list[Host]:
    left = {host.name: host.slots for host in hosts}
    order: list[Host] = []
    while len(order) < workers:
        for host in hosts:
            if left[host.name] and len(order) < workers:
                left[host.name] -= 1
                order.append(host)
    return order


def _by_number(hosts: Sequence[Host], workers: int, numbers: Sequence[int]) -> list[Host]:
    if len(numbers) != workers or max(numbers) >= len(hosts):
        raise WrongCommand(
            f"--map-by {short(','.join(map(str, numbers)))}",
            why=f"it has one number from 0 to {len(hosts) - 1} for each of {workers} workers",
        )
    return [hosts[number] for number in numbers]


def _by_rankfile(hosts: Sequence[Host], workers: int, path: Path) -> list[Host]:
    known, chosen = {host.name: host for host in hosts}, dict[int, Host]()
    for number, line in _lines(path):
        where, match = f"{path}, line {number}: {short(line)}", _RANK.fullmatch(line)
        if match is None:
            raise WrongCommand(where, why="a line is `rank 0=HOST`")
        rank, name = int(match["rank"]), match["name"]
        if name not in known:
            raise WrongCommand(where, why=f"{name} is none of the hosts {written(hosts)}")
        if rank in chosen:
            raise WrongCommand(where, why=f"rank {rank} has a line already")
        chosen[rank] = known[name]
    lacking = [rank for rank in range(workers) if rank not in chosen]
    if lacking:
        raise WrongCommand(f"{path}", why=f"it has no line for rank {lacking[0]}", remedy=f"rank {lacking[0]}=HOST")
    return [chosen[rank] for rank in range(workers)]


def _host(word: str, where: str) -> Host:
    match = _SHORT.fullmatch(word)
    if match is None:
        raise WrongCommand(where, why=f"{short(word)!r} is no host", remedy="-H a:4,b:4")
    slots = int(match["slots"]) if match["slots"] else 1
    return _checked(Host(match["name"].strip("[]"), slots, user=match["user"] or ""), where)


def _of_mpi(line: str, where: str) -> Host:
    match = _MPI.fullmatch(line)
    settings = dict(re.findall(r"([\w\-]+)\s*=\s*(\S+)", match["rest"])) if match else {}
    unknown = [name for name in settings if name not in ("slots", "max_slots", "max-slots")]
    if match is None or unknown:
        why = f"it has {unknown[0]}, which is none of slots, max_slots" if unknown else "a line is `HOST slots=4`"
        raise WrongCommand(where, why=why, remedy="a slots=4, or a:4")
    text = settings.get("slots", "1")
    if not re.fullmatch(r"-?\d{1,18}", text):
        raise WrongCommand(where, why=f"slots is a number; got {short(text)}", remedy="slots=4")
    return _checked(Host(match["name"].strip("[]"), int(text), user=match["user"] or ""), where)


def _checked(host: Host, where: str) -> Host:
    if not 1 <= host.slots <= MOST_SLOTS:
        raise WrongCommand(
            where, why=f"{host.name} has {host.slots} slots; a host has 1 to {MOST_SLOTS:,}", remedy=f"{host.name}:4"
        )
    for word, form, kind in ((host.name, _PLAIN, "name of a host"), (host.user or "me", _USER, "name of a user")):
        if not form.fullmatch(word):
            raise WrongCommand(where, why=f"{short(word)!r} is no {kind}", remedy="a:4, or me@a:4")
    if host.address.startswith("-") or not 0 <= host.port <= 65535:
        raise WrongCommand(where, why="its address or port cannot be", remedy='address = "10.0.0.2", port = 22')
    return host


def _distinct(hosts: Sequence[Host], where: str, numbers: Sequence[int] = ()) -> tuple[Host, ...]:
    """Return the hosts. Raises WrongCommand for a host that is named twice; `numbers` are the lines of the hosts."""
    twice = [name for name, count in Counter(host.name for host in hosts).items() if count > 1]
    if twice:
        lines = [str(number) for number, host in zip(numbers, hosts, strict=False) if host.name == twice[0]][:2]
        why = f"{twice[0]} is named twice{f', in lines {lines[0]} and {lines[1]}' if lines else ''}"
        raise WrongCommand(where, why=why, remedy=f"one entry with all its slots, such as {twice[0]}:4")
    return tuple(hosts)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not empty, without comments, with their numbers."""
    text = read_text(path)
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            yield number, line

"""The agent of one host. It starts the ranks of that host, forwards their output, and ends with all of them.

    launcher --- stdin:  JSON lines   beat, serve, start, end  --->  agent  --->  ranks of this host
    launcher <-- stdout: JSON lines   hello, beat, serving, started, line, file, ended  ---  agent

The agent needs no port, and no secret on a command line. It ends its ranks when stdin closes. It also ends them when
the launcher has been silent for a while, because a cut link does not close stdin. Messages on stdout start with the
byte RS, so that the greeting of a login shell is not taken for a message. If the agent is killed, its guard ends the
ranks.

    python -m paceline.cluster.agent [--connect ADDRESS:PORT]

With --connect the agent dials a launcher instead of using stdin and stdout, and proves the token in PACELINE_TOKEN.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import queue
import re
import select
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.cluster.facts import addresses, facts
from paceline.cluster.failure import Failure
from paceline.cluster.job import LocalJob
from paceline.cluster.output import Output
from paceline.cluster.owner import owned_prefix
from paceline.cluster.restarts import Restarts
from paceline.cluster.seats import environment_of
from paceline.comm.frames import introduce, send
from paceline.comm.socketstore import SocketStore, StoreServer
from paceline.elastic.contact import FAR
from paceline.elastic.frames import ABSENT
from paceline.elastic.launch import CHOICES, FOLDER, coordinator_command, far_folder, read_spec
from paceline.errors import PacelineError, Stopped, WorkerFailed, WrongCommand
from paceline.types import Host, Place, Seat

MARK = "\x1e"  # RS, before every message on stdout
BEAT = 1.0  # seconds between two signs of life
SILENCE = 5.0  # seconds without one after which the other side counts as lost
LAST = 4.5  # seconds that ending may take before the agent leaves everything to its guard
PART = 1 << 18  # bytes of a file in one message
PATIENCE = 120.0  # seconds to reach a launcher that is not there yet
FILE = re.compile(r"(rank|steps)-(\d{1,7})\.[a-z][a-z0-9.\-]{0,40}")
TOKEN = "PACELINE_TOKEN"


class Channel:
    """Messages from and to the launcher. `ended` is set when the launcher has gone, ended the job, or is silent."""

    def __init__(self, source: int, sink: int, silence: float = SILENCE) -> None:
        self._source, self._sink, self.silence = source, sink, silence
        self._lock = threading.Lock()
        self._heard = time.monotonic()
        self.inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.ended = threading.Event()
        self.why = ""
        self.on_end: Any = lambda: None

    def begin(self) -> None:
        threading.Thread(target=self._listen, name="agent listens", daemon=True).start()
        threading.Thread(target=self._beat, name="agent beats", daemon=True).start()

    def send(self, kind: str, **values: Any) -> None:
        data = f"{MARK}{json.dumps({'kind': kind, **values})}\n".encode()
        with self._lock, contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._sink, data) :]

    def _beat(self) -> None:
        while not self.ended.wait(BEAT):
            self.send("beat")

    def _listen(self) -> None:
        rest = b""
        while True:
            ready, _, _ = select.select([self._source], [], [], 0.2)
            if not ready:
                if time.monotonic() - self._heard > self.silence:
                    return self._end(f"nothing was heard of the launcher for {self.silence:g} s")
                continue
            try:
                data = os.read(self._source, 1 << 16)
            except OSError:
                data = b""
            if not data:
                return self._end("the launcher has gone")
            self._heard = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                message = _message(line)
                if message["kind"] == "end":
                    return self._end("the launcher ended the job")
                if message["kind"] != "beat":
                    self.inbox.put(message)

    def _end(self, why: str) -> None:
        self.why = why
        timer = threading.Timer(LAST, lambda: os._exit(1))  # closes the guard's pipe, which kills the ranks
        timer.daemon = True
        timer.start()
        self.ended.set()
        self.inbox.put(None)
        self.on_end()

    def next(self) -> dict[str, Any] | None:
        """Wait for the next message and return it. Return None at the end."""
        return self.inbox.get()


def _message(line: bytes) -> dict[str, Any]:
    """Parse a message of the launcher. A line that is no message counts as the message "end"."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    return message if isinstance(message, dict) and "kind" in message else {"kind": "end"}


def main(argv: Sequence[str] = ()) -> int:
    channel = _channel(argv)
    channel.begin()
    channel.send("hello", **facts().to_dict())
    server: StoreServer | None = None
    try:
        while (message := channel.next()) is not None:
            if message["kind"] == "serve":
                server = _serve(channel, message)
            elif message["kind"] == "question":
                channel.send("answer", **_answer(message))
            elif message["kind"] == "start":
                _run(channel, message)
    finally:
        if server is not None:
            server.close()
    return 0


def _channel(argv: Sequence[str]) -> Channel:
    if argv[:1] == ["--connect"]:
        line = _dial(argv[1], os.environ[TOKEN])
        return Channel(os.dup(line.fileno()), line.detach())
    # Whatever a library prints must not come between messages.
    sink = os.dup(1)
    os.dup2(2, 1)
    return Channel(0, sink)


def _dial(place: str, token: str) -> socket.socket:
    """Connect to the launcher. Retry for PATIENCE seconds, because it may start later than this agent."""
    address, _, port = place.rpartition(":")
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            line = socket.create_connection((address, int(port)), timeout=10)
            break
        except OSError as problem:
            if time.monotonic() > limit:
                raise PacelineError(f"the launcher at {place} cannot be reached", why=str(problem)) from None
            time.sleep(0.2)
    introduce(line, token)
    send(line, {"index": int(os.environ.get("JOB_COMPLETION_INDEX", "0"))})
    line.settimeout(None)
    return line


def _serve(channel: Channel, message: Mapping[str, Any]) -> StoreServer | None:
    """Serve the store of the job at the address where other hosts reach this one."""
    try:
        address = own_address(message["host"], os.environ)
        server = StoreServer(message["token"], address)
        with socket.create_server((address, 0)) as probe:  # for the coordinator of an elastic job
            free = int(probe.getsockname()[1])
    except (OSError, PacelineError) as problem:
        channel.send("serving", problem=str(problem))
        return None
    channel.send("serving", address=server.address, port=server.port, coordinator=free)
    return server


def _answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether this host sees a file, and why it cannot reach the first host's store ("" if it can)."""
    problem = ""
    try:
        SocketStore(message["address"], message["port"], message["token"], 5.0).close()
    except PacelineError as error:
        problem = str(error)
    return {"sees": Path(message["path"]).is_file(), "problem": problem}


def own_address(host: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the address where other hosts reach this one.

    It is, in this order: the configured address, that of the configured interface, the one that ssh used, that of the
    host name, or that of the first interface which is not loopback.
    """
    if host.get("address"):
        return socket.gethostbyname(host["address"])
    known = addresses()
    if host.get("interface"):
        if host["interface"] not in known:
            raise WrongCommand(
                f"--network-interface {host['interface']}",
                why=f"{host['name']} has {', '.join(known)}",
                remedy=f"--network-interface {next((name for name in known if name != 'lo'), 'lo')}",
            )
        return known[host["interface"]]
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and words[2] in known.values():
        return words[2]
    try:
        resolved = socket.gethostbyname(host["name"])
    except OSError:
        resolved = ""
    if resolved in known.values() and not resolved.startswith("127."):
        return resolved
    return next((address for name, address in known.items() if name != "lo"), "127.0.0.1")


def interface_of(address: str) -> str:
    return next((name for name, known in addresses().items() if known == address), "")


def seat_of(values: Mapping[str, Any]) -> Seat:
    host = Host(**values["host"])
    return Seat(values["rank"], host, values["local_rank"], Place(tuple(values["prefix"]), values["environ"]))


def seat_to_dict(seat: Seat) -> dict[str, Any]:
    return {
        "rank": seat.rank,
        "local_rank": seat.local_rank,
        "host": {**asdict(seat.host), "identity": ""},
        "prefix": list(seat.place.prefix),
        "environ": dict(seat.place.environ),
    }


def _run(channel: Channel, message: Mapping[str, Any]) -> None:
    """Run the ranks of this host to their end. Send their files and failures to the launcher."""
    folder = Path(tempfile.mkdtemp(prefix=owned_prefix()))
    channel.silence = message["silence"]
    try:
        for name, text in message["files"].items():
            (folder / name).write_text(text)
        failures, error = _ranks(channel, message, folder)
        for path in sorted(folder.iterdir()):
            if FILE.fullmatch(path.name) and path.suffix != ".log":
                _send_file(channel, path)
        channel.send("ended", failures=[asdict(failure) for failure in failures], error=error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ranks(channel: Channel, message: Mapping[str, Any], folder: Path) -> tuple[Sequence[Failure], str]:
    job = LocalJob(folder, Output(folder, None, None, prefix=False, on_line=_pass_on(channel)), message["workers"])
    channel.on_end = job.stop
    try:
        with job:
            _launch(job, message, folder)
            channel.send("started", pids=job.pids)
            if channel.ended.is_set():
                return (), channel.why
            job.wait()
    except WorkerFailed as problem:
        return job.failures, str(problem)
    except (PacelineError, OSError, Stopped) as problem:
        return (), str(problem)
    return (), ""


def _launch(job: LocalJob, message: Mapping[str, Any], folder: Path) -> None:
    seats = [seat_of(values) for values in message["seats"]]
    mine = [seats[rank] for rank in message["ranks"]]
    workers = message["workers"]
    environ = {**os.environ, **message["environ"]}
    interface = mine[0].host.interface or interface_of(own_address(asdict(mine[0].host), os.environ))
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface and interface != "lo" else ():
        environ.setdefault(name, interface)
    spec = read_spec(folder)
    if spec is not None:
        job.restarts = Restarts(spec["restart"], always=frozenset({workers}))
        environ[FOLDER] = f"{FAR}{message['address']}:{message['coordinator']}"
    if spec is not None and 0 in message["ranks"]:
        _coordinate(job, message, folder, spec, environ)
    for seat in mine:
        variables = environment_of(
            seat,
            seats,
            workers,
            environ,
            port=message["port"],
            store=message["store"],
            folder=str(folder),
            sharing=sum(neighbor.rank < workers for neighbor in mine),
        )
        variables |= {"MASTER_ADDR": message["address"], TOKEN: message["token"]}
        job.launch(seat.rank, [*seat.place.prefix, *message["argv"]], variables, host=seat.host.name)


def _coordinate(
    job: LocalJob, message: Mapping[str, Any], folder: Path, spec: Mapping[str, Any], environ: Mapping[str, str]
) -> None:
    """Start the coordinator of an elastic job beside the ranks of the first host, where all hosts reach it."""
    kept = far_folder(folder / "elastic", message["token"], message["address"], message["coordinator"])
    (kept / CHOICES).write_text(environ.get("PACELINE_CHOICES", "{}"))
    job.on_gone = lambda rank: (kept / f"{ABSENT}-{rank}").touch()
    numbers = {name: int(spec[name]) for name in ("start", "least", "most", "task")}
    command = coordinator_command(kept, **numbers, rule="tcp", interface=message["address"])
    job.launch(message["workers"], command, environ, host="coordinator")


def _pass_on(channel: Channel) -> Any:
    def on_line(rank: int, stream: str, line: str) -> None:
        channel.send("line", rank=rank, stream=stream, text=line)

    return on_line


def _send_file(channel: Channel, path: Path) -> None:
    with path.open("rb") as file:
        while True:
            part = file.read(PART)
            channel.send("file", name=path.name, part=base64.b64encode(part).decode())
            if not part:
                return


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except PacelineError as problem:
        print(f"paceline: {problem}", file=sys.stderr, flush=True)
        code = problem.exit_code
    sys.stdout.flush()
    os._exit(code)

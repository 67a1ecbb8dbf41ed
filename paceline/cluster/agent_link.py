"""The launcher's end of one agent: its process or socket, its reports, and messages that are still to be sent."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.cluster.agent import FILE, MARK
from paceline.cluster.cause import Tail
from paceline.cluster.facts import Facts, checked
from paceline.cluster.failure import Failure
from paceline.types import Host

LONGEST = 1 << 22  # bytes of one message
LARGEST = 1 << 30  # bytes of one file
Put = Callable[[int, str, bytes], None]


class AgentLink:
    """One agent. `source` and `sink` are descriptors. `process` is the local program behind them, such as ssh."""

    def __init__(
        self,
        host: Host,
        ranks: Sequence[int],
        source: int,
        sink: int,
        *,
        process: subprocess.Popen[bytes] | None = None,
        errors: int = -1,
    ) -> None:
        self.host, self.ranks = host, tuple(ranks)
        self.source, self.sink, self.errors, self.process = source, sink, errors, process
        for number in (source, sink, errors):
            if number >= 0:
                os.set_blocking(number, False)
        self.heard = time.monotonic()
        self.facts: Facts | None = None
        self.met = 0.0  # time of day when the facts arrived
        self.serving: dict[str, Any] | None = None
        self.answers: dict[str, Any] = {}
        self.pids: dict[int, int] = {}
        self.failures: list[Failure] = []
        self.error: str | None = None  # set when the agent has reported the end of its ranks; empty if all is well
        self.lost = ""  # why the agent is gone, if it is
        self.lost_at = 0.0
        self._rest = bytearray()
        self._out = bytearray()
        self._words, self._greeting = Tail(), Tail()

    @classmethod
    def started(cls, host: Host, ranks: Sequence[int], argv: Sequence[str], **settings: Any) -> AgentLink:
        """Start the program that runs the agent (ssh, srun, or Python itself), and return the link to it."""
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            **settings,
        )
        streams = [stream for stream in (process.stdout, process.stdin, process.stderr) if stream is not None]
        numbers = [os.dup(stream.fileno()) for stream in streams]
        for stream in streams:
            stream.close()
        return cls(host, ranks, numbers[0], numbers[1], process=process, errors=numbers[2])

    @property
    def open(self) -> bool:
        """Return whether the agent may still report something."""
        return self.source >= 0 and not self.lost

    @property
    def ended(self) -> bool:
        return self.error is not None

    @property
    def waiting(self) -> bool:
        return bool(self._out) and self.sink >= 0

    @property
    def last_words(self) -> str:
        return self._words.text.strip() or self._greeting.text.strip()

    def send(self, kind: str, **values: Any) -> None:
        if self.sink >= 0 and len(self._out) < LONGEST:  # an agent that reads nothing is lost soon
            self._out += json.dumps({"kind": kind, **values}).encode() + b"\n"
            self.flush()

    def flush(self) -> None:
        try:
            while self._out and self.sink >= 0:
                del self._out[: os.write(self.sink, self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._close("sink")

    def hang_up(self) -> None:
        """Close the agent's stdin, which ends it."""
        self._close("sink")

    def read(self, folder: Path, put: Put) -> None:
        """Read what the agent has sent and act on it."""
        try:
            data = os.read(self.source, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._gone()
            return
        self.heard = time.monotonic()
        *lines, rest = bytes(self._rest + data).split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            self._take(line, folder, put)
        if len(self._rest) > LONGEST:
            self.lose("its agent sent something that is no message")

    def read_errors(self) -> None:
        try:
            data = os.read(self.errors, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close("errors")
        self._words.add(data)

    def lose(self, why: str) -> None:
        if not self.lost and not self.ended:
            self.lost, self.lost_at = why, time.monotonic()

    def kill(self) -> None:
        """End the local program and close all descriptors."""
        for name in ("source", "sink", "errors"):
            self._close(name)
        if self.process is not None:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _gone(self) -> None:
        if self.errors >= 0:
            self.read_errors()
        self._close("source")
        code = self.process.poll() if self.process is not None else None
        end = f" with exit code {code}" if code else ""
        self.lose(f"its agent ended{end}" + (f": {_last_line(self.last_words)}" if self.last_words else ""))

    def _close(self, name: str) -> None:
        number = getattr(self, name)
        if number >= 0:
            setattr(self, name, -1)
            os.close(number)

    def _take(self, line: bytes, folder: Path, put: Put) -> None:
        if not line.startswith(MARK.encode()):
            self._greeting.add(line + b"\n")  # the greeting of a login shell
            return
        try:
            self._obey(json.loads(line[1:]), folder, put)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
            self.lose(f"its agent sent something that is no message ({problem})")

    def _obey(self, message: dict[str, Any], folder: Path, put: Put) -> None:
        kind = message["kind"]
        if kind == "hello":
            self.facts, self.met = Facts.read(message), time.time()
        elif kind == "answer":
            self.answers = message
        elif kind == "serving":
            self.serving = message
        elif kind == "started":
            self.pids = {int(rank): int(pid) for rank, pid in message["pids"].items()}
        elif kind == "line" and message["rank"] in self.ranks:
            put(message["rank"], message["stream"], message["text"].encode("utf-8", "replace") + b"\n")
        elif kind == "file":
            self._keep(message["name"], base64.b64decode(message["part"]), folder)
        elif kind == "ended":
            self.failures = [checked(Failure, values) for values in message["failures"]]
            self.error = str(message["error"])

    def _keep(self, name: str, part: bytes, folder: Path) -> None:
        """Append a part to a file of a rank of this host. Raises ValueError for any other file name."""
        known = FILE.fullmatch(name)
        if known is None or int(known[2]) not in self.ranks:
            raise ValueError(f"a file {name[:80]!r}")
        path = folder / name
        with path.open("ab") as file:
            if file.tell() + len(part) > LARGEST:
                raise ValueError(f"{name} is larger than {LARGEST:,} bytes")
            file.write(part)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")

"""Batches through a ZeroMQ pipe: producers in any language push, workers pull. No pickle.

    part 0     b"PACELIN2", number of the message (uint64, little-endian), HMAC-SHA256 (48 bytes in all)
    part 1     JSON: dtype and shape of each tensor (layout.py)
    part 2...  the bytes of each tensor, little-endian, row by row

Numbers rise from message to message. The HMAC covers the first 16 bytes of part 0, the length of part 1 (uint64),
part 1 and all tensors; its key is the token that both sides have in PACELINE_DATA_TOKEN. Inside one host (loopback,
ipc) nobody else can change the traffic: there a message may begin with b"PACELIN1", whose HMAC covers these 16 bytes
and part 1 alone, because hashing a batch takes about as long as sending it. A full pipe stops the producer.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import time
from collections.abc import Sequence
from struct import Struct
from typing import Any

from paceline.errors import MissingPackage, WorkloadError, WrongCommand
from paceline.workload.stream import layout

TOKEN = "PACELINE_DATA_TOKEN"
HEADER, WHOLE = b"PACELIN1", b"PACELIN2"  # what the seal covers
_HEAD = Struct("<8sQ32s")
_WAITING = 2  # batches on each side
GRACE = 5.0  # seconds to wait for a producer that has disconnected
_ADDRESS = re.compile(r"tcp://[^\s/]+:(\d{1,5}|\*)|ipc://\S+")


def package() -> Any:
    try:
        import zmq
    except ImportError:
        raise MissingPackage("source zmq", package="pyzmq", extra="zmq") from None
    return zmq


def check_address(address: str) -> str:
    if not _ADDRESS.fullmatch(address):
        raise WrongCommand(
            f"address {address}", why="it is no ZeroMQ address", remedy="tcp://127.0.0.1:5555 or ipc://FILE"
        )
    return address


def stays_inside(address: str) -> bool:
    """Return whether only this host can reach an address."""
    if address.startswith("ipc://"):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def seal(token: str, number: int, text: bytes, contents: Sequence[Any] | None = None) -> bytes:
    """Return part 0 of a message, with its HMAC. If `contents` are passed, the HMAC covers the tensors, too."""
    start = (HEADER if contents is None else WHOLE) + number.to_bytes(8, "little")
    length = b"" if contents is None else len(text).to_bytes(8, "little")
    code = hmac.new(token.encode(), start + length + text, "sha256")
    for content in contents or ():
        code.update(content)
    return start + code.digest()


def unseal(token: str, parts: list[Any], *, inside: bool) -> tuple[int, tuple[Any, ...]]:
    """Return the number and the tensors of a message. Raises ValueError with the reason if it is not valid.

    `inside` is whether only this host can have sent it, so that a seal of the header is enough.
    """
    head, text = bytes(parts[0][: _HEAD.size + 1]), bytes(parts[1][: layout.LONGEST + 1]) if len(parts) > 1 else b""
    if len(head) != _HEAD.size or head[:8] not in (HEADER, WHOLE) or len(parts) < 3:
        raise ValueError("a message that is no batch")
    kind, number, _ = _HEAD.unpack(head)
    if kind == HEADER and not inside:
        raise ValueError("a message whose seal leaves out its tensors, which between hosts anybody could change")
    if not hmac.compare_digest(head, seal(token, number, text, parts[2:] if kind == WHOLE else None)):
        raise ValueError(f"a message with another seal than that of {TOKEN}, which must be the same on both sides")
    fields = layout.read(text)
    if [len(part) for part in parts[2:]] != [field.nbytes for field in fields]:
        raise ValueError("tensors of other sizes than its header promises")
    return number, tuple(layout.tensor_of(part, field) for part, field in zip(parts[2:], fields, strict=True))


class Push:
    """The producer's side."""

    def __init__(self, address: str, token: str) -> None:
        zmq = package()
        self._token, self._number = token, 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, _WAITING)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(check_address(address))
        except zmq.ZMQError as problem:
            self.close()
            raise WrongCommand(f"address {address}", why=str(problem), remedy="another port") from None
        self.address: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._inside = stays_inside(self.address)

    def send(self, batch: Any, what: str) -> None:
        """Send a batch. Waits while the pipe is full or no worker is connected."""
        import torch

        tensors = layout.describe(batch, what)
        text = layout.write(layout.fields_of(tensors))
        self._number += 1
        contents = [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in tensors]
        head = seal(self._token, self._number, text, None if self._inside else contents)
        self._socket.send_multipart([head, text, *contents], copy=False)

    def close(self) -> None:
        self._context.destroy(linger=0)


class Pull:
    """The worker's side."""

    def __init__(self, address: str, token: str, timeout: float) -> None:
        zmq = self._zmq = package()
        self._address, self._token, self._timeout = address, token, timeout
        self._last: int | None = None  # number of the last message
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, _WAITING)
        self._socket.setsockopt(zmq.MAXMSGSIZE, layout.LARGEST)
        watched = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(watched)
        self._connected = self._spoke = False
        self._inside = stays_inside(address)
        self._left: float | None = None  # when the producer disconnected
        self._socket.connect(check_address(address))

    def take(self) -> tuple[Any, ...]:
        """Return the next batch. Raises if none comes, the producer is gone, or it sends something else."""
        limit = time.monotonic() + self._timeout
        while not self._socket.poll(200):
            self._look()
            now = time.monotonic()
            if now > limit or (self._left is not None and now > self._left + GRACE):
                raise WorkloadError(f"source zmq({self._address})", why=self._silence(), remedy=_REMEDY)
        parts = self._socket.recv_multipart(copy=False)
        try:
            number, tensors = unseal(self._token, [part.buffer for part in parts], inside=self._inside)
        except ValueError as problem:
            raise WorkloadError(f"source zmq({self._address})", why=f"it sent {problem}", remedy=_REMEDY) from None
        self._check_number(number)
        return tensors

    def _check_number(self, number: int) -> None:
        """Raise if a message does not follow the last one: it is a repetition, or its producer has started anew."""
        if self._last is not None and number <= self._last:
            raise WorkloadError(
                f"source zmq({self._address})",
                why=f"it sent batch {number} after batch {self._last}: batches come again, or those between are lost",
                remedy="one producer for each address, which is started once for a run",
            )
        self._last = number

    def close(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _look(self) -> None:
        """Read the events of the connection."""
        from zmq.utils.monitor import recv_monitor_message

        zmq = self._zmq
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_CONNECTED:
                self._connected = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._spoke, self._left = True, None
            elif event == zmq.EVENT_DISCONNECTED and self._left is None:
                self._left = time.monotonic()

    def _silence(self) -> str:
        if self._left is not None and self._spoke:
            after = "" if self._last is None else f" after batch {self._last}"
            return f"the producer has ended{after}, or sent more than {layout.LARGEST:,} bytes at once"
        if self._left is not None:
            return "who answers there does not speak ZeroMQ"
        return f"no batch came for {self._timeout:g} s" + ("" if self._connected else ", nobody answers there")


_REMEDY = "paceline data produce SOURCE ADDRESS"

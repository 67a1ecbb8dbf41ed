"""A proxy on loopback in front of `rclone serve s3`, and a way to make requests fail.

    client -> proxy -> rclone        the header Host is not changed, because the signature covers it

rclone answers a range with status 200 and a Content-Range; clients of S3 expect 206, so the proxy changes the status.
With `faults`, a share of all requests fails:

    503      SlowDown, without asking rclone
    reset    the connection is reset before the answer
    short    half of the body, then the connection is closed
"""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KINDS = ("503", "reset", "short")
_PIECE = 1 << 18
_OWN = {"connection", "keep-alive", "transfer-encoding"}  # headers of one connection
_SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code></Error>"
LARGEST = 1 << 32  # bytes of an upload


class Proxy:
    """A running proxy. `faults` may change at any time; `requests` and `failed` count."""

    def __init__(self, target: tuple[str, int], port: int = 0, *, faults: float = 0.0, seed: int = 0) -> None:
        self.target, self.faults = target, faults
        self.requests, self.failed = Counter[str](), Counter[str]()
        self._dice, self._lock = random.Random(seed), threading.Lock()
        self._connections: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", port), _handler(self))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="paceline proxy", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self._server.server_close()  # waits for the threads of connections

    def fault(self, path: str) -> str:
        """Count a request, and return how it fails; empty if it does not."""
        with self._lock:
            self.requests[path] += 1
            if self._dice.random() >= self.faults:
                return ""
            kind = self._dice.choice(KINDS)
            self.failed[kind] += 1
            return kind

    def keep(self, connection: socket.socket, *, open_now: bool) -> None:
        with self._lock:
            (self._connections.add if open_now else self._connections.discard)(connection)


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing, because clients may close a connection at any time."""


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 0

        def setup(self) -> None:
            super().setup()
            self._upstream: http.client.HTTPConnection | None = None
            proxy.keep(self.connection, open_now=True)
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def finish(self) -> None:
            proxy.keep(self.connection, open_now=False)
            if self._upstream is not None:
                self._upstream.close()
            super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing, because requests contain signatures."""

        def _pass(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= LARGEST or self.headers.get("Transfer-Encoding"):
                self.send_error(411)
                self.close_connection = True
                return None
            kind = proxy.fault(self.path.partition("?")[0])
            body = self.rfile.read(length) if length else b""
            if kind == "reset":
                return self._reset()
            if kind == "503":
                return self._send(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            return self._forward(body, short=kind == "short")

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass

        def _reset(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in [*headers, ("Content-Length", str(len(body)))]:
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _forward(self, body: bytes, *, short: bool) -> None:
            answer = self._ask(body)
            if answer is None:
                return self._send(502, [], b"")
            partial = answer.status == 200 and answer.getheader("Content-Range")
            self.send_response_only(206 if partial else answer.status)
            length = answer.getheader("Content-Length")
            for name, value in answer.getheaders():
                if name.lower() not in _OWN:
                    self.send_header(name, value)
            left = int(length) if length is not None and self.command != "HEAD" else 0
            if length is None:
                self.send_header("Connection", "close")
                self.close_connection = True
                left = LARGEST if self.command != "HEAD" else 0
            self.end_headers()
            if short:
                left //= 2
                self.close_connection = True
            while left and (piece := answer.read(min(left, _PIECE))):
                self.wfile.write(piece)
                left -= len(piece)
            if short and self._upstream is not None:
                self._upstream.close()
            elif self.command == "HEAD":
                answer.read()
            return None

        def _ask(self, body: bytes) -> http.client.HTTPResponse | None:
            """Send the request to rclone, on the open connection or a new one."""
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
            for _ in range(2):
                if self._upstream is None:
                    self._upstream = http.client.HTTPConnection(*proxy.target, timeout=60)
                try:
                    self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in headers.items():
                        self._upstream.putheader(name, value)
                    self._upstream.endheaders(body or None)
                    return self._upstream.getresponse()
                except (OSError, http.client.HTTPException):
                    self._upstream.close()
                    self._upstream = None
            return None

    return Handler

"""Turn SIGINT, SIGTERM, SIGHUP and calls of stop() into events of a poll loop, or into an exception."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paceline.errors import Stopped

CALLED = 0  # stands for a call of stop(), beside the numbers of signals
ENDING = (signal.SIGTERM, signal.SIGHUP)  # by default these end a process without cleanup
AT_ONCE = 1.0  # seconds in which a second Ctrl-C counts as part of the first


class StopRequests:
    """Requests to stop a job. `received` lists them in order; `fd` is readable until clear() is called."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    @property
    def signals(self) -> list[int]:
        return [number for number in self.received if number != CALLED]

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch signals inside the with-block, except signals that are set to be ignored (by nohup or &)."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
        ours = {number: old for number, old in before.items() if old not in (signal.SIG_IGN, None)}
        try:
            for number in ours:
                signal.signal(number, self._on_signal)
            yield
        finally:
            for number, old in ours.items():
                signal.signal(number, old)

    def notify(self) -> None:
        """Record a call of stop(). It may come from another thread than the one in wait()."""
        with self._lock:
            self._record(CALLED)

    def clear(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        with self._lock:
            # Set fd to -1 first, because a signal may arrive between the two lines.
            fd, self.fd = self.fd, -1
            os.close(fd)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._record(number)

    def _record(self, number: int) -> None:
        self.received.append(number)
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)


class Ended:
    """A signal handler that raises Stopped; `number` is the first signal, or None."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._at = 0.0

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """Raise Stopped for the first signal. Ignore later ones, so that cleanup can run, but not a later Ctrl-C."""
        if self.number is None or (number == signal.SIGINT and time.monotonic() > self._at + AT_ONCE):
            self.number, self._at = self.number or number, time.monotonic()
            raise Stopped(self.number)


@contextmanager
def ended_in_order(ended: Ended | None = None) -> Iterator[None]:
    """Raise Stopped on SIGINT, SIGTERM or SIGHUP inside the with-block, so that cleanup code runs."""
    ended, ours = ended or Ended(), {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
        ours = {number: old for number, old in handlers.items() if _is_usual(number, old)}
    try:
        for number in ours:
            signal.signal(number, ended)
        yield
    finally:
        for number, old in ours.items():
            signal.signal(number, old)


def _is_usual(number: int, handler: object) -> bool:
    """Return whether to replace a handler: for SIGINT any Python function, for other signals only the default."""
    return callable(handler) if number == signal.SIGINT else handler == signal.SIG_DFL

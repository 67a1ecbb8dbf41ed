"""SIGINT, SIGTERM, SIGHUP and calls of stop() as something that a poll loop can see, or as an exception."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paceline.errors import Stopped

CALLED = 0  # rung by stop(), not by a signal
ENDING = (signal.SIGTERM, signal.SIGHUP)  # what would end a process without a word


class Bell:
    """`rung` lists what came in, the first first; `fd` polls as readable until heard."""

    def __init__(self) -> None:
        self.rung: list[int] = []
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()

    @property
    def signals(self) -> list[int]:
        return [number for number in self.rung if number != CALLED]

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Signals ring while this lasts. What the shell told us to ignore (nohup, &) stays ignored."""
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

    def ring(self) -> None:
        """For stop() in another thread than wait()."""
        with self._lock:
            self._ring(CALLED)

    def hear(self) -> None:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        with self._lock:
            # -1 first: a signal may arrive between the two lines.
            fd, self.fd = self.fd, -1
            os.close(fd)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._ring(number)

    def _ring(self, number: int) -> None:
        self.rung.append(number)
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, the first SIGTERM or SIGHUP raises, as Ctrl-C does, so that what was begun is taken down."""
    seen: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if not seen:
            seen.append(number)
            raise Stopped(number)

    ours = []
    if threading.current_thread() is threading.main_thread():
        ours = [number for number in ENDING if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in ours:
            signal.signal(number, stop)
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)

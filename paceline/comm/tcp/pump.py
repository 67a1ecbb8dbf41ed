"""One epoll and one daemon thread that move the bytes of all sockets of a process.

A thread that waits for a result takes the pump over, so that a small message needs no hand-over between threads:

    pump thread   | poll, handle | poll ...        parked               | poll, handle
    main thread                   wait(): poll, handle, poll, handle ---'

Handlers run under the lock `state`, no matter which thread polls. Polling itself only holds the lock `turn`.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from typing import Protocol

PARKED = 0.002  # seconds that the pump's own thread leaves the sockets to a thread that has just waited
SLICE = 0.5  # seconds of one poll at most
READ, WRITE = select.EPOLLIN, select.EPOLLOUT


class Handler(Protocol):
    """An object with a socket, whose methods the pump calls."""

    def fileno(self) -> int: ...

    def on_readable(self) -> None: ...

    def on_writable(self) -> None: ...


class Pump:
    """Polls sockets and calls their handlers, in its own thread or in a thread that waits for a result."""

    def __init__(self, name: str) -> None:
        self.state = threading.RLock()
        self._turn, self._epoll = threading.Lock(), select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, READ)
        self._handlers: dict[int, Handler] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._waiting, self._resume, self._closed = 0, 0.0, False
        self._calm = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # sockets; callers hold `state` ------------------------------------------------------------------

    def add(self, handler: Handler, events: int) -> None:
        self._handlers[handler.fileno()] = handler
        self._epoll.register(handler.fileno(), events)

    def watch(self, handler: Handler, events: int) -> None:
        """Change the events that a handler is called for."""
        self._epoll.modify(handler.fileno(), events)

    def remove(self, handler: Handler) -> None:
        number = handler.fileno()
        if self._handlers.pop(number, None) is not None:
            self._epoll.unregister(number)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Call `act` once, after some seconds."""
        self._timers.append((time.monotonic() + seconds, act))

    # waiting ------------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool], seconds: float) -> bool:
        """Move bytes until `done()` is true or the time is over. Return whether it is true."""
        if done():
            return True
        limit = time.monotonic() + seconds
        if self._closed:
            return False
        self._waiting += 1
        try:
            os.eventfd_write(self._wake, 1)
            with self._turn:
                while not done():
                    left = limit - time.monotonic()
                    if left <= 0 or self._closed:
                        return done()
                    self._poll(min(left, SLICE))
            return True
        finally:
            self._waiting -= 1
            self._resume = time.monotonic() + PARKED

    def _run(self) -> None:
        while not self._closed:
            if self._waiting or time.monotonic() < self._resume:
                self._calm.wait(PARKED)
                continue
            with self._turn:
                if not self._closed:
                    self._poll(SLICE)

    def _poll(self, seconds: float) -> None:
        ready = self._epoll.poll(seconds)
        with self.state:
            for number, events in ready:
                if number == self._wake:
                    os.eventfd_read(self._wake)
                    continue
                handler = self._handlers.get(number)
                if handler is not None and events & ~WRITE:
                    handler.on_readable()
                if events & WRITE and self._handlers.get(number) is handler and handler is not None:
                    handler.on_writable()
            if self._timers:
                self._ring()

    def _ring(self) -> None:
        now = time.monotonic()
        due = [act for moment, act in self._timers if moment <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for act in due:
            act()

    def close(self) -> None:
        self._closed = True
        self._calm.set()
        os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        with self._turn, self.state:
            self._epoll.close()
            os.close(self._wake)

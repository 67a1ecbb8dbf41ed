"""Wait for a job and stop it: the part that jobs of one host and jobs of several hosts share.

One thread at a time supervises the job and handles signals. Another thread may call stop(); it wakes the first one.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from paceline.cluster.failure import Failure
from paceline.cluster.output import Output
from paceline.cluster.stop_requests import CALLED, StopRequests
from paceline.errors import Stopped, WorkerFailed

Own = TypeVar("Own", bound="SupervisedJob")


class SupervisedJob(ABC):
    """A job with one poll loop. `failures` lists the ranks that failed, the cause first."""

    def __init__(self, folder: Path, output: Output) -> None:
        self.folder = folder
        self.failures: list[Failure] = []
        self._output, self._requests = output, StopRequests()
        self._lock = threading.Lock()
        self._holder = 0
        self._open = True
        self._outcome: BaseException | None = WorkerFailed("the job was stopped before its workers ended")

    @abstractmethod
    def _watch(self) -> BaseException | None:
        """Run the poll loop until the job is over. Return the error to raise, if there is one."""

    @abstractmethod
    def _end(self) -> None:
        """End all processes that still run, and close everything. Sets `_open` to False."""

    def wait(self) -> None:
        """Wait until all workers have exited with 0.

        If one fails, stop the others and raise WorkerFailed for the first failure. On SIGINT, SIGTERM or SIGHUP,
        which only the main thread receives, stop all workers and raise Stopped.
        """
        with self._held():
            if self._open:
                try:
                    outcome = self._watch()
                finally:
                    self._end()
                self._outcome = outcome or self._output.problem
        if self._outcome:
            raise self._outcome

    def stop(self) -> None:
        """End all workers with SIGTERM. Those that still run after a few seconds, or at another signal, get SIGKILL."""
        if not self._open:
            return
        self._requests.notify()  # wakes a wait() in another thread
        if self._holder == threading.get_ident():
            return  # called from on_line; the wait() that called it stops the workers
        with self._held():
            if self._open:
                self._end()
        if self._requests.signals:
            raise Stopped(self._requests.signals[0])

    def results(self) -> Path:
        """Return the folder with the files of all ranks; those of other hosts were copied to it."""
        return self.folder

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Let one thread at a time supervise the workers and handle signals."""
        with self._lock, self._requests.caught():
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0

    def _stop_error(self) -> BaseException | None:
        number = self._requests.received[0]
        return self._outcome if number == CALLED else Stopped(number)

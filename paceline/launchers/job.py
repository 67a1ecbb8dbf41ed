"""Workers of one host under watch: one poll loop over their pipes, their ends, the terminal and the bell.

No threads, and no signal is sent to a process that might have been replaced by another. A launcher for many
hosts runs this on each host, with the ranks that are there.
"""

from __future__ import annotations

import logging
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from paceline.errors import Stopped, WorkerFailed
from paceline.launchers.bell import CALLED, Bell
from paceline.launchers.failure import Failure, failed, failure_of, in_order, told_of
from paceline.launchers.guard import Guard
from paceline.launchers.output import Output
from paceline.launchers.process import Worker

MOMENT = 0.3  # seconds in which several bad ends count as one event
PATIENCE = 1.0  # seconds to wait for the cause while all say that they are a consequence
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LAST = 1.0  # seconds for SIGKILL, and for a slow terminal after a failure

log = logging.getLogger(__name__)


class LocalJob:
    """`failures` are the workers that ended badly by themselves, the cause first."""

    def __init__(self, folder: Path, output: Output, workers: int | None = None) -> None:
        self.folder = folder
        self._count = workers
        self.failures: list[Failure] = []
        self._began = time.monotonic()
        self._ended: dict[int, float] = {}
        self._workers: list[Worker] = []
        self._output, self._guard, self._bell = output, Guard(), Bell()
        self._lock = threading.Lock()
        self._holder = 0
        self._open = True
        self._outcome: BaseException | None = WorkerFailed("the job was stopped before its workers ended")

    @property
    def pids(self) -> dict[int, int]:
        """The process of each rank."""
        return {worker.rank: worker.pid for worker in self._workers}

    def launch(self, rank: int, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start one more worker."""
        self._output.open(rank)
        worker = Worker(rank, argv, environ, lambda stream, block: self._output.put(rank, stream, block))
        self._workers.append(worker)
        self._guard.add(worker.pid)

    def wait(self) -> None:
        """Return when all workers have exited with 0.

        Otherwise stop all others and raise: WorkerFailed for the first that failed, Stopped for SIGINT, SIGTERM
        and SIGHUP (seen only if this is the main thread).
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
        """End all workers: SIGTERM, and SIGKILL after a grace of 2 s or at once on Ctrl-C."""
        if not self._open:
            return
        self._bell.ring()  # wakes a wait() in another thread
        if self._holder == threading.get_ident():
            return  # called by on_line: the wait() around it stops
        with self._held():
            if self._open:
                self._end()
        if self._bell.signals:
            raise Stopped(self._bell.signals[0])

    def __enter__(self) -> LocalJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """One thread at a time looks after the workers, and signals are its to handle."""
        with self._lock, self._bell.caught():
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0

    def _watch(self) -> BaseException | None:
        while self._running():
            self._turn(None)
            if self._bell.rung:
                return self._asked_to_stop()
            if self._output.problem:
                return self._output.problem
            if any(worker.status for worker in self._workers):
                return self._cause()
        self._turns(None, lambda: bool(self._output.waiting) and not self._bell.rung)
        return self._asked_to_stop() if self._bell.rung else None

    def _asked_to_stop(self) -> BaseException | None:
        number = self._bell.rung[0]
        return self._outcome if number == CALLED else Stopped(number)

    def _cause(self) -> WorkerFailed:
        """Others die of the first failure within moments, and may be quicker to end than the one that caused it."""
        began = time.monotonic()
        self._turns(MOMENT, self._in_peace)
        self.failures = self._failures()
        while self.failures[0].consequence and time.monotonic() < began + PATIENCE and self._in_peace():
            self._turn(0.05)
            self.failures = self._failures()
        return failed(self.failures[0], self.folder, self._count)

    def _failures(self) -> list[Failure]:
        now = time.monotonic()
        found = []
        for worker in self._workers:
            if worker.status or (worker.running and told_of(worker.rank, self.folder)):
                seconds = self._ended.get(worker.rank, now) - self._began
                found.append(
                    failure_of(
                        worker.rank,
                        worker.pid,
                        worker.status,
                        seconds=seconds,
                        folder=self.folder,
                        last_words=worker.last_words,
                    )
                )
        return in_order(found)

    def _in_peace(self) -> bool:
        return bool(self._running()) and not self._bell.rung

    def _running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.running]

    def _turns(self, seconds: float | None, going: Callable[[], bool]) -> None:
        """Turn for some seconds (None: without limit) while there is reason to."""
        limit = None if seconds is None else time.monotonic() + seconds
        while going():
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return
            self._turn(left)

    def _turn(self, seconds: float | None) -> None:
        """Wait for something to happen, and see to it."""
        running = self._running()
        ready = {fd for fd, _ in self._poll(running).poll(None if seconds is None else 1000 * seconds)}
        for worker in running:
            for lines in worker.pipes:
                if lines.open and lines.fd in ready:
                    lines.read()
            if worker.pidfd in ready and worker.look():
                self._ended[worker.rank] = time.monotonic()
        self._output.pump()
        self._bell.hear()

    def _poll(self, running: Sequence[Worker]) -> select.poll:
        poll = select.poll()
        poll.register(self._bell.fd, select.POLLIN)
        for worker in running:
            poll.register(worker.pidfd, select.POLLIN)
            for lines in worker.pipes:
                if lines.open and not self._output.full:
                    poll.register(lines.fd, select.POLLIN)
        for fd in self._output.waiting:
            poll.register(fd, select.POLLOUT)
        return poll

    def _end(self) -> None:
        try:
            asked = len(self._bell.signals)
            self._send(signal.SIGTERM)
            self._turns(GRACE, lambda: bool(self._running()) and len(self._bell.signals) == asked)
            self._send(signal.SIGKILL)
            self._turns(LAST, lambda: bool(self._running()))
            self._turns(LAST, lambda: bool(self._output.waiting) and len(self._bell.signals) == asked)
        finally:
            self._close()

    def _send(self, number: int) -> None:
        for worker in self._running():
            worker.send(number)

    def _close(self) -> None:
        self._open = False
        self._send(signal.SIGKILL)
        for worker in self._running():
            log.warning("rank %d (pid %d) does not end, even by SIGKILL", worker.rank, worker.pid)
        for worker in self._workers:
            worker.close()
        # What was killed together with a worker takes a moment to die.
        limit = time.monotonic() + MOMENT
        while not all(worker.group_is_gone() for worker in self._workers) and time.monotonic() < limit:
            time.sleep(0.002)
        self._guard.close()
        self._output.close()
        self._bell.close()

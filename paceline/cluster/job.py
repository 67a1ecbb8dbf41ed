"""Supervise the workers of one host: one poll loop over their pipes, their exits, the terminal and stop requests.

There are no threads, and no signal is sent to a pid that might have been reused. In a job on several hosts, the agent
of each host runs this for the ranks of its host.
"""

from __future__ import annotations

import logging
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.cluster.failure import Failure, failed, failure_of, has_report, in_order
from paceline.cluster.forking import Zygote
from paceline.cluster.guard import Guard
from paceline.cluster.output import Output
from paceline.cluster.process import WorkerProcess
from paceline.cluster.restarts import Restarts
from paceline.cluster.supervised import SupervisedJob
from paceline.errors import WorkerFailed
from paceline.files.redact import secrets_of

MOMENT = 0.3  # seconds in which several failures count as one event
PATIENCE = 1.0  # seconds to wait for the cause while all failures are consequences
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
LAST = 1.0  # seconds to wait after SIGKILL, and for a slow terminal after a failure

log = logging.getLogger(__name__)


class LocalJob(SupervisedJob):
    """The workers of one host. `failures` lists the workers that failed, the cause first."""

    def __init__(self, folder: Path, output: Output, workers: int | None = None) -> None:
        super().__init__(folder, output)
        self._count = workers
        self._began = time.monotonic()
        self._ended: dict[int, float] = {}
        self._hosts: dict[int, str] = {}
        self._workers: list[WorkerProcess] = []
        self._secrets: tuple[str, ...] = ()
        self._guard = Guard()
        self.restarts: Restarts | None = None  # set in an elastic job; otherwise the first failure ends the job
        self.on_gone: Callable[[int], None] = lambda rank: None  # a rank has ended and is not started again
        self._zygote: Zygote | None = None
        self._commands: dict[int, tuple[list[str], dict[str, str], str]] = {}
        self._past: list[WorkerProcess] = []  # workers that died and were replaced

    @property
    def pids(self) -> dict[int, int]:
        """Return the pid of each rank."""
        return {worker.rank: worker.pid for worker in self._workers}

    def prepare_forks(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        """Fork workers from a process that has imported some modules, where that makes no difference to them."""
        self._guard.expect()
        self._zygote = Zygote(modules, {**environ, **self._guard.environ})
        self._guard.add(self._zygote.pid)

    def launch(
        self, rank: int, argv: Sequence[str], environ: Mapping[str, str], host: str = "", foreground: bool = False
    ) -> None:
        """Start one more worker. `host` is the name of its host in messages."""
        self._hosts[rank] = host
        if rank not in self._commands:
            self._output.open(rank)
        self._commands[rank] = (list(argv), dict(environ), host)
        self._secrets = self._secrets or secrets_of(environ)
        full = {**environ, **self._guard.environ}
        self._guard.expect()
        worker = WorkerProcess(
            rank,
            argv,
            full,
            lambda stream, block: self._output.put(rank, stream, block),
            foreground=foreground,
            zygote=self._zygote,
        )
        self._workers.append(worker)
        self._guard.add(worker.pid)

    def _watch(self) -> BaseException | None:
        while self._running():
            self._turn(None)
            if self._requests.received:
                return self._stop_error()
            if self._output.problem:
                return self._output.problem
            if any(worker.status for worker in self._workers) and not self._go_on():
                return self._cause()
        self._turns(None, lambda: bool(self._output.waiting) and not self._requests.received)
        return self._stop_error() if self._requests.received else None

    def _go_on(self) -> bool:
        """Restart workers that a signal has ended, as far as the policy allows. Return whether the job goes on.

        A worker that ended with an exit code is not restarted, because its script would fail again; the job ends.
        """
        if self.restarts is None or any(worker.status and worker.status > 0 for worker in self._workers):
            return False
        for worker in [worker for worker in self._workers if worker.status]:
            self._workers.remove(worker)
            self._past.append(worker)
            if self.restarts.allows(worker.rank):
                argv, environ, host = self._commands[worker.rank]
                log.info("rank %d (pid %d) died; it is started again", worker.rank, worker.pid)
                self.launch(worker.rank, argv, environ, host)
            else:
                self.on_gone(worker.rank)
        return any(worker.rank not in self.restarts.always for worker in self._workers)

    def _cause(self) -> WorkerFailed:
        """Return the error for the cause. Wait for it briefly, because other workers may end before the cause does."""
        began = time.monotonic()
        self._turns(MOMENT, self._in_peace)
        self.failures = self._failures()
        while self.failures[0].consequence and time.monotonic() < began + PATIENCE and self._in_peace():
            self._turn(0.05)
            self.failures = self._failures()
        return failed(self.failures[0], self.folder, self._count)

    def _failures(self) -> list[Failure]:
        now = time.monotonic()
        failures = []
        for worker in (*self._workers, *self._past):
            if worker.status or (worker.running and has_report(worker.rank, self.folder)):
                seconds = self._ended.get(worker.rank, now) - self._began
                failures.append(
                    failure_of(
                        worker.rank,
                        worker.pid,
                        worker.status,
                        seconds=seconds,
                        folder=self.folder,
                        last_words=worker.last_words,
                        secrets=self._secrets,
                        host=self._hosts.get(worker.rank, ""),
                    )
                )
        return in_order(failures)

    def _in_peace(self) -> bool:
        return bool(self._running()) and not self._requests.received

    def _running(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers if worker.running]

    def _turns(self, seconds: float | None, going: Callable[[], bool]) -> None:
        """Run the poll loop for some seconds (None: without limit) while `going` returns True."""
        limit = None if seconds is None else time.monotonic() + seconds
        while going():
            left = None if limit is None else limit - time.monotonic()
            if left is not None and left <= 0:
                return
            self._turn(left)

    def _turn(self, seconds: float | None) -> None:
        """Wait for the next events and handle them."""
        running = self._running()
        ready = {fd for fd, _ in self._poll(running).poll(None if seconds is None else 1000 * seconds)}
        for worker in running:
            for lines in worker.pipes:
                if lines.open and lines.fd in ready:
                    lines.read()
            if worker.pidfd in ready and worker.look():
                self._ended[worker.rank] = time.monotonic()
                if worker.status == 0:
                    self.on_gone(worker.rank)
        self._output.pump()
        self._requests.clear()

    def _poll(self, running: Sequence[WorkerProcess]) -> select.poll:
        poll = select.poll()
        poll.register(self._requests.fd, select.POLLIN)
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
            before = len(self._requests.signals)
            self._send(signal.SIGTERM)
            self._turns(GRACE, lambda: bool(self._running()) and len(self._requests.signals) == before)
            self._send(signal.SIGKILL)
            self._turns(LAST, lambda: bool(self._running()))
            self._turns(LAST, lambda: bool(self._output.waiting) and len(self._requests.signals) == before)
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
        for worker in (*self._workers, *self._past):
            worker.close()
        # Processes that were killed together with a worker take a moment to end.
        limit = time.monotonic() + MOMENT
        while not all(worker.group_is_gone() for worker in self._workers) and time.monotonic() < limit:
            time.sleep(0.002)
        self._guard.close()
        if self._zygote is not None:
            self._zygote.close()
        self._output.close()
        self._requests.close()

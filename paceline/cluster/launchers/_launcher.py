"""The seam of launchers: starting the processes of a job, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Protocol

from paceline.cluster.failure import Failure
from paceline.types import Host, Seat


class Job(AbstractContextManager["Job"], Protocol):
    """The processes of one start; leaving the context stops those that still run."""

    @property
    def failures(self) -> Sequence[Failure]:
        """The processes that failed by themselves, the cause first."""

    def wait(self) -> None:
        """Wait until all have ended; raise WorkerFailed for the first failure, Stopped for a signal."""

    def stop(self) -> None:
        """End all processes now."""

    def results(self) -> Path:
        """Return the folder with the files that ranks left: `rank-K.json`, `steps-K.json`, `rank-K.log`."""


class Launcher(Protocol):
    """A member of the menu of launchers."""

    name: ClassVar[str]

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the hosts that the launcher knows by itself, such as those of an allocation."""

    def check(self, seats: Sequence[Seat]) -> None:
        """Raise if the seats cannot be filled, as far as that is known before anything starts."""

    def start(
        self,
        argv: Sequence[str],
        *,
        workers: int,
        folder: Path,
        environ: Mapping[str, str],
        prefix: bool,
        on_line: Callable[[int, str, str], None] | None = None,
        servers: int = 0,
        seats: Sequence[Seat] = (),
    ) -> Job:
        """Start `workers` processes of argv, and `servers` more of the same, which come after them as ranks.

        `folder` holds the files of the job on this machine; files that lie there go to every host. Output lines go to
        on_line(rank, "stdout" or "stderr", line), or to the terminal, with the rank in front if `prefix`.
        """

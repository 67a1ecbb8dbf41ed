"""The protocols of launchers and of the jobs that they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Protocol

from paceline.cluster.failure import Failure
from paceline.types import Host, Seat


class Job(AbstractContextManager["Job"], Protocol):
    """The processes of one start. Leaving the context stops the processes that still run."""

    @property
    def failures(self) -> Sequence[Failure]:
        """Return the processes that failed, the cause first."""

    def wait(self) -> None:
        """Wait until all processes have ended. Raises WorkerFailed for the first failure, Stopped for a signal."""

    def stop(self) -> None:
        """End all processes now."""

    def results(self) -> Path:
        """Return the folder with the files that ranks left: `rank-K.json`, `steps-K.json`, `rank-K.log`."""


class Launcher(Protocol):
    """A member of the menu of launchers."""

    name: ClassVar[str]

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        """Return the hosts that the launcher finds without the user's help, such as those of an allocation."""

    def check(self, seats: Sequence[Seat]) -> None:
        """Raise if ranks cannot be started on these seats, as far as this can be checked in advance."""

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
        """Start `workers` + `servers` processes of argv. The servers are the ranks after the workers.

        `folder` holds the files of the job on this machine; JSON files in it go to every host. Output lines go to
        on_line(rank, "stdout" or "stderr", line), or else to the terminal, with the rank in front if `prefix`.
        """

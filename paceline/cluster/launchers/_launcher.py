"""The seam of launchers: starting the processes of a job, wherever they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import ClassVar, Protocol

from paceline.types import Place


class Job(AbstractContextManager["Job"], Protocol):
    """The processes of one start; leaving the context stops those that still run."""

    def wait(self) -> None:
        """Until all have ended; raises with the first failure."""

    def stop(self) -> None:
        """End all processes now."""


class Launcher(Protocol):
    """A member of the menu of launchers."""

    name: ClassVar[str]

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
        place: Callable[[int], Place] = ...,
    ) -> Job:
        """Start `workers` processes of argv, and `servers` more of the same, which come after them as ranks."""

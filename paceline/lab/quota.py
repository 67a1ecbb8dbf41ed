"""A share of a core for each worker: a control group with a CPU quota, version 1 or 2, whichever the machine has.

    quota = cpus x 100 ms of processor time in every period of 100 ms

The worker enters its group before its program begins (a shell writes its own pid and then becomes the program), so
that all threads and children are inside. Groups lie below the group of this process and carry its name.
"""

from __future__ import annotations

import errno
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from paceline.errors import WrongCommand
from paceline.lab.owner import is_abandoned, owned_name
from paceline.types import Place

PERIOD = 100_000  # microseconds; the kernel's default, and what container engines use
_ENTER = 'echo $$ > "$0" && exec "$@"'
_PATIENCE = 2.0  # seconds in which processes that were killed leave their group


@dataclass(frozen=True)
class Tree:
    """The control groups of a machine: the version, and the group in which new ones are made."""

    version: int
    home: Path

    def limit(self, group: Path, cpus: float) -> None:
        quota = round(cpus * PERIOD)
        if self.version == 2:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
            return
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(quota))


class Quota:
    """One group per worker, there while inside."""

    def __init__(self, cpus: float, workers: int, proc: Path = Path("/proc")) -> None:
        self._cpus, self._workers, self._proc = cpus, workers, proc
        self.groups: list[Path] = []

    def __enter__(self) -> Quota:
        tree = self._tree()
        name = owned_name()
        try:
            _sweep(tree.home)
            for rank in range(self._workers):
                group = tree.home / f"{name}-{rank}"
                group.mkdir()
                self.groups.append(group)
                tree.limit(group, self._cpus)
        except OSError as problem:
            self._remove()
            raise self._refusal(f"{problem.filename or tree.home}: {problem.strerror}") from None
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, where: TracebackType | None
    ) -> None:
        self._remove()

    def place(self, rank: int) -> Place:
        return Place(("/bin/sh", "-c", _ENTER, str(self.groups[rank] / "cgroup.procs")))

    def _remove(self) -> None:
        for group in self.groups:
            _remove(group, _PATIENCE)
        self.groups = []

    def _tree(self) -> Tree:
        tree = find_tree(self._proc)
        if tree is None:
            raise self._refusal("this machine has no control group for CPUs that this process could use")
        return tree

    def _refusal(self, why: str) -> WrongCommand:
        return WrongCommand(f"--cpus {self._cpus:g}", why=why, remedy="root on Linux, or docker run --privileged")


def find_tree(proc: Path = Path("/proc")) -> Tree | None:
    """Where groups with a CPU quota can be made: version 2 if its cpu controller is there, else version 1."""
    mounts = [line.split()[1:4] for line in (proc / "mounts").read_text().splitlines()]
    own = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    for place, kind, _ in mounts:
        if kind == "cgroup2":
            home = _home_of_two(Path(place), next((path for number, _, path in own if number == "0"), "/"))
            if home is not None:
                return Tree(2, home)
    for place, kind, options in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for _, controllers, path in own if "cpu" in controllers.split(",")), "/")
            return Tree(1, _existing(Path(place), path))
    return None


def _home_of_two(mount: Path, path: str) -> Path | None:
    """The nearest group, from our own upward, whose children can have a CPU quota.

    A group other than the root cannot have both processes and children with controllers.
    """
    group = _existing(mount, path)
    while True:
        if _offers_cpu(group):
            return group
        if group == mount:
            return None
        group = group.parent


def _offers_cpu(group: Path) -> bool:
    try:
        if "cpu" not in (group / "cgroup.controllers").read_text().split():
            return False
        control = group / "cgroup.subtree_control"
        if "cpu" not in control.read_text().split():
            control.write_text("+cpu")
    except OSError:
        return False
    return True


def _existing(mount: Path, path: str) -> Path:
    """Our own group; in a container its path may be one of the host, which is not there."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount


def _sweep(home: Path) -> None:
    """Remove what killed owners left; their workers have been killed with them."""
    for group in home.iterdir():
        if is_abandoned(group.name):
            _remove(group, 0.0)


def _remove(group: Path, patience: float) -> None:
    limit = time.monotonic() + patience
    while True:
        try:
            group.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError as problem:
            if problem.errno != errno.EBUSY or time.monotonic() > limit:
                return
        time.sleep(0.01)

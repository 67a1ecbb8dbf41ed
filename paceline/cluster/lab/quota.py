"""Limit each worker to a share of a core, with a control group (version 1 or 2) that has a CPU quota.

    quota = cpus x 100 ms of processor time in every period of 100 ms

The worker enters its group before its program starts (a shell writes its own pid and then executes the program), so
that the group holds all threads and children. Groups are created below the group of this process and carry its name.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from paceline.cluster.owner import is_abandoned, owned_name
from paceline.errors import WrongCommand
from paceline.types import Place

PERIOD = 100_000  # microseconds; the default of the kernel and of container engines
_ENTER = 'echo $$ > "$0" && exec "$@"'
_OURS = re.compile(r"paceline-\d+-\d+-\d+-[0-9a-f]{6}-\d+")
_PATIENCE = 2.0  # seconds that killed processes may take to leave their group


@dataclass(frozen=True)
class Tree:
    """A hierarchy of control groups: its version, and the group in which new ones are created."""

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
    """Control groups, one per worker. They exist inside the with-block."""

    def __init__(self, cpus: float, workers: int, proc: Path = Path("/proc")) -> None:
        self._cpus, self._workers, self._proc = cpus, workers, proc
        self.groups: list[Path] = []

    def __enter__(self) -> Quota:
        tree = self._tree()
        name = owned_name()
        try:
            _remove_abandoned(tree.home)
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
    """Return where groups with a CPU quota can be created: version 2 if it has the cpu controller, else version 1."""
    trees = list(_trees(proc))
    for kind, mount, own in trees:
        home = _home_of_two(mount, own) if kind == "cgroup2" else None
        if home is not None:
            return Tree(2, home)
    return next((Tree(1, _existing(mount, own)) for kind, mount, own in trees if kind == "cgroup"), None)


def _trees(proc: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the mounted hierarchies: kind, mount point, and the path of this process's group."""
    try:
        mounts = [line.split()[1:4] for line in (proc / "mounts").read_text().splitlines()]
        own = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
    except OSError:
        return
    for place, kind, options in mounts:
        if kind == "cgroup2":
            yield kind, Path(place), next((path for number, _, path in own if number == "0"), "/")
        elif kind == "cgroup" and "cpu" in options.split(","):
            path = next((path for _, controllers, path in own if "cpu" in controllers.split(",")), "/")
            yield kind, Path(place), path


def _home_of_two(mount: Path, path: str) -> Path | None:
    """Return the nearest group, from this process's own upward, whose children can have a CPU quota.

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
    """Return the cgroup of this process, or the mount point of cgroups if it is not visible, as in a container."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount


def abandoned(proc: Path = Path("/proc")) -> list[Path]:
    """Return the groups that killed owners left behind, in every group where this process could create some."""
    return [group for home in _homes(proc) for group in _abandoned_in(home)]


def sweep(proc: Path = Path("/proc")) -> None:
    """Remove the groups of killed owners. Their workers are dead, because the guard killed them."""
    for group in abandoned(proc):
        _remove(group, 0.0)


def _remove_abandoned(home: Path) -> None:
    for group in _abandoned_in(home):
        _remove(group, 0.0)


def _abandoned_in(home: Path) -> list[Path]:
    try:
        return [home / name for name in os.listdir(home) if _OURS.fullmatch(name) and is_abandoned(name)]
    except OSError:
        return []


def _homes(proc: Path) -> Iterator[Path]:
    """Yield every group in which `find_tree` could create new ones. Unlike `find_tree`, this changes no group."""
    for kind, mount, own in _trees(proc):
        group = _existing(mount, own)
        yield group
        while kind == "cgroup2" and group != mount:
            group = group.parent
            yield group


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

"""A small process that outlives the launcher. When the launcher is gone, it kills the workers' process groups.

    launcher --pipe--> guard         the pipe closes when the launcher ends, even by kill -9

    starting                         before a worker is started
    GROUP BEGAN                      after it was started: its process group, and the start time of its first process

The guard kills a group only if the process with that number has the noted start time, or has ended. In the second
case the number cannot have been reused, because a group with members keeps its number. If the launcher is killed
between the two lines, the guard does not know the worker's group. It then searches all processes for a variable in
their environment, several times, because the new process may not have executed the worker's program yet.

PR_SET_PDEATHSIG was considered. It needs code between fork and exec (or one more exec per worker), it fires when the
*thread* that started the worker ends, and it does not reach grandchildren: the children of `uv run python train.py`,
or a data loader, would live on. The guard is a shell of 1 MB that is started once and sleeps.
"""

from __future__ import annotations

import secrets
import subprocess
from pathlib import Path

VARIABLE = "PACELINE_GUARD"
SCRIPT = """
starting=
while read -r group began; do
    if [ "$group" = starting ]; then starting=yes; else starting=; groups="$groups $group:$began"; fi
done
for known in $groups; do
    group=${known%:*}
    if read -r stat 2>/dev/null < "/proc/$group/stat"; then
        set -- ${stat##*) }
        [ "${20}" = "${known#*:}" ] || continue
    fi
    kill -s KILL -- "-$group"
done
[ "$starting" ] || exit 0
for look in 1 2 3 4 5; do
    for path in $(grep -l -F -e "$0" /proc/[0-9]*/environ); do
        path=${path%/environ}
        kill -s KILL -- "-${path#/proc/}"
    done
    sleep 0.1
done
"""


class Guard:
    """The guard of one launcher: a shell that kills the workers when the launcher's end of a pipe closes."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(16)
        # It has its own session, so that Ctrl-C does not reach it, and no output, so that it keeps no pipe open.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, f"{VARIABLE}={self._mark}", "paceline-guard"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={},
            start_new_session=True,
        )
        assert self._shell.stdin is not None
        self._pipe = self._shell.stdin

    @property
    def pid(self) -> int:
        return self._shell.pid

    @property
    def environ(self) -> dict[str, str]:
        """Return the environment variable by which the guard recognizes a worker."""
        return {VARIABLE: self._mark}

    def expect(self) -> None:
        """Announce that a worker is about to be started."""
        self._pipe.write(b"starting\n")

    def add(self, group: int) -> None:
        """Announce the process group of a worker that was started and has not been reaped."""
        self._pipe.write(f"{group} {_began(group)}\n".encode())

    def close(self) -> None:
        """End the guard without killing any worker. The guard is ended before the pipe closes."""
        self._shell.kill()
        self._shell.wait()
        self._pipe.close()


def _began(pid: int) -> str:
    """Return the start time of a process in clock ticks after boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]

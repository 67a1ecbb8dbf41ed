"""A watchman that outlives the launcher: when the launcher is gone, it kills the workers' process groups.

    launcher --pipe--> guard         kill -9 of the launcher closes the pipe; nothing else can

PR_SET_PDEATHSIG was considered. It needs code between fork and exec (or one more exec per worker), it fires
when the *thread* that started the worker ends, and it spares grandchildren: `uv run python train.py` or a
data loader would live on. The guard is a shell of 1 MB that is started once and sleeps.
"""

from __future__ import annotations

import subprocess

SCRIPT = """
while read -r group; do groups="$groups $group"; done
for group in $groups; do kill -s KILL -- "-$group"; done
"""


class Guard:
    def __init__(self) -> None:
        # Its own session, so that Ctrl-C passes it by; no output, so that it keeps no pipe of ours open.
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, "paceline-guard"],
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

    def add(self, group: int) -> None:
        self._pipe.write(f"{group}\n".encode())

    def close(self) -> None:
        """Dismiss it before the pipe closes: nothing is to be killed any more."""
        self._shell.kill()
        self._shell.wait()
        self._pipe.close()

"""The launcher's side of a zygote: start it, and let it fork workers. Workers are spawned if the zygote is gone."""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from paceline.cluster.zygote import HEAD, ONE_THREAD, PROGRAM, send

STARTING = 60.0  # seconds for the imports, on a busy machine
FORKING = 5.0  # seconds for one fork
_SUBREAPER, _IS_SUBREAPER = 36, 37  # numbers of the system call prctl
_KEPT = ("PYTHON", "LD_", "TORCH_", "MKL_", "KMP_", "GOMP_", "ATEN_")  # read when a process starts, or at an import

_libc: Any = ctypes.CDLL(None, use_errno=True)


class Forked:
    """A worker that a zygote has forked, with the parts of a Popen that the launcher uses."""

    def __init__(self, pid: int, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid, self.stdout, self.stderr = pid, stdout, stderr

    def wait(self) -> None:
        """Reap the worker, which has ended."""
        os.waitpid(self.pid, 0)


class Zygote:
    """A zygote with some modules imported. The process that creates it becomes the parent of all forked workers."""

    def __init__(self, modules: Sequence[str], environ: Mapping[str, str]) -> None:
        self._environ = {**environ, **ONE_THREAD}
        self._link, theirs = socket.socketpair()
        words = [sys.executable, "-c", PROGRAM, str(theirs.fileno()), *modules]
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words,
            env=self._environ,
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
        theirs.close()
        self._ready, self._open = False, True
        was = ctypes.c_int(0)
        _libc.prctl(_IS_SUBREAPER, ctypes.byref(was), 0, 0, 0)
        self._before = was.value
        _libc.prctl(_SUBREAPER, 1, 0, 0, 0)

    @property
    def pid(self) -> int:
        return self._process.pid

    def takes(self, argv: Sequence[str], environ: Mapping[str, str]) -> bool:
        """Return whether a forked worker would behave like a spawned one: same Python, same variables at its start."""
        if not self._open or len(argv) < 2 or (argv[1].startswith("-") and argv[1] != "-m"):
            return False
        return is_this_python(argv[0], environ) and _start_of(environ) == _start_of(self._environ)

    def fork(self, argv: Sequence[str], environ: Mapping[str, str]) -> Forked | None:
        """Return a new worker, or None if the zygote is gone or does not answer.

        After that it gets no more requests.
        """
        pipes = [os.pipe(), os.pipe()]
        try:
            self._await_start()
            send(self._link, {"words": list(argv[1:]), "environ": dict(environ)}, [write for _, write in pipes])
            pid = self._answer(FORKING)
        except OSError:
            self.close()
            for read, _ in pipes:
                os.close(read)
            return None
        finally:
            for _, write in pipes:
                os.close(write)
        stdout, stderr = (os.fdopen(read, "rb", buffering=0) for read, _ in pipes)
        return Forked(pid, stdout, stderr)

    def _await_start(self) -> None:
        if not self._ready:
            self._answer(STARTING)
            self._ready = True

    def _answer(self, seconds: float) -> int:
        if not select.select([self._link], [], [], seconds)[0]:
            raise TimeoutError("the zygote does not answer")
        answer = self._link.recv(HEAD)
        if len(answer) < HEAD:
            raise ConnectionError("the zygote is gone")
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        """End the zygote. Its workers continue to run."""
        if self._open:
            self._open = False
            self._link.close()
            self._process.kill()
            self._process.wait()
            _libc.prctl(_SUBREAPER, self._before, 0, 0, 0)


def is_this_python(word: str, environ: Mapping[str, str]) -> bool:
    """Return whether a command starts the interpreter of this process, of the same virtual environment."""
    path = shutil.which(word, path=environ.get("PATH"))
    if path is None:
        return False
    mine, its = Path(sys.executable), Path(path)
    return mine.parent.resolve() == its.parent.resolve() and mine.samefile(its)


def _start_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process reads only when it starts or imports."""
    return {k: v for k, v in environ.items() if k.startswith(_KEPT) and k not in ONE_THREAD}


def has_gpu(environ: Mapping[str, str]) -> bool:
    """Return whether workers may use CUDA, which does not survive a fork."""
    return Path("/dev/nvidiactl").exists() and environ.get("CUDA_VISIBLE_DEVICES") != ""

"""Run `paceline ...` in the process of the tests, with workers that are forked from one process of the session.

A worker that is started in the usual way imports torch for two seconds, and so does the command that starts it. In a
test of what workers compute, that is most of its time. Here the launcher, its supervision and the workers are those of
a real job; only the imports have been done before (see docs/adr/0033). Tests of launchers, of signals, of memory and of
the ways to start a script start everything anew.
"""

import ctypes
import functools
import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from paceline.cli import main
from paceline.cluster import job
from paceline.cluster.forking import Zygote
from paceline.cluster.process import WorkerProcess
from paceline.race.script import IMPORTED

ROOT = Path(__file__).parents[1]
SUBREAPER = 36  # the number of the operation of prctl
_libc = ctypes.CDLL(None)
_zygotes: list[Zygote] = []
_records: list[str] = []  # a folder for records of commands that name none


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@contextmanager
def zygote() -> Iterator[Zygote]:
    """Keep a process that forks workers; conftest.py has one for the session."""
    with _in_root():
        forks = Zygote((*IMPORTED, "paceline.train.worker", "paceline.train.build"), os.environ)
    _libc.prctl(SUBREAPER, 0, 0, 0, 0)  # orphans of other tests are not ours
    _zygotes.append(forks)
    try:
        with tempfile.TemporaryDirectory() as records:
            _records[:] = [records]
            yield forks
    finally:
        _zygotes.remove(forks)
        forks.close()


def paceline(*words: object) -> Done:
    """Carry out a command from the root of the repository, as `python -m paceline WORDS` would."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        environ = {"PACELINE_RUNS": os.environ.get("PACELINE_RUNS", _records[0])}
        with mock.patch.dict(os.environ, environ), forked_workers(), redirect_stdout(out), redirect_stderr(err):
            main([str(word) for word in words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


@contextmanager
def forked_workers() -> Iterator[None]:
    """Fork all workers that this process starts; they run in the root of the repository."""
    [forks] = _zygotes
    _libc.prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        with _in_root(), mock.patch.object(job, "WorkerProcess", functools.partial(_started, forks)):
            yield
    finally:
        _libc.prctl(SUBREAPER, 0, 0, 0, 0)


def _started(forks: Zygote, rank, argv, environ, pass_on, *, zygote=None, **settings) -> WorkerProcess:
    assert forks.takes(argv, environ), f"{argv} cannot be forked"
    return WorkerProcess(rank, argv, environ, pass_on, zygote=zygote or forks, **settings)


@contextmanager
def _in_root() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)

"""A test leaves nothing behind, and a test that cannot run says so.

Leaks are found by reading /proc, never by starting a process; a test pays for it well under 2 ms.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PATIENCE = 1.0  # seconds in which what is about to end may end
LASTING = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # Python keeps these for the session
BY_IMPORT = {"PYTEST_CURRENT_TEST", "KMP_INIT_AT_FORK", "KMP_DUPLICATE_LIB_OK", "TORCHINDUCTOR_CACHE_DIR"}

SHARED = ("tests/elastic/test_crew.py", "tests/examples/test_examples.py")  # files with one job for all their tests
ALL_CORES = {"cluster", "comm", "engine", "kills", "measure", "multi", "race"}


@dataclass(frozen=True)
class Traces:
    """What a test could leave behind; of processes and sockets, all that could be seen before it."""

    threads: set[threading.Thread]
    pids: set[str]
    sockets: set[str]
    shared_memory: set[str]
    namespaces: set[str]
    environ: dict[str, str]

    @classmethod
    def now(cls) -> Traces:
        return cls(
            threads=set(threading.enumerate()),
            pids=names_in("/proc"),
            sockets=sockets_of("self"),
            shared_memory={name for name in names_in("/dev/shm") if "paceline" in name},
            namespaces=names_in("/run/netns"),
            environ=dict(os.environ),
        )


def pytest_collection_finish() -> None:
    """Take torch and the collected tests out of garbage collection, which would look at all of them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = Traces.now()
    yield
    problems = leaks(before)
    if changed := restore(before.environ):
        problems["environment variables"] = changed
    if problems:
        pytest.fail(
            "; ".join(f"{kind} left behind: {', '.join(what)}" for kind, what in problems.items()), pytrace=False
        )


def leaks(before: Traces) -> dict[str, list[str]]:
    limit = time.monotonic() + PATIENCE
    while found := new_since(before):
        if time.monotonic() > limit:
            break
        time.sleep(0.01)
    return found


def new_since(before: Traces) -> dict[str, list[str]]:
    now = Traces.now()
    children = child_processes(now.pids - before.pids)
    found = {
        "threads": sorted(thread.name for thread in now.threads - before.threads),
        "processes": [f"{pid} {command_of(pid)}" for pid in children],
        "ports": listening(now.sockets.union(*map(sockets_of, children)) - before.sockets),
        "shared memory": sorted(now.shared_memory - before.shared_memory),
        "namespaces": sorted(name for name in now.namespaces - before.namespaces if not of_another_program(name)),
    }
    return {kind: what for kind, what in found.items() if what}


def of_another_program(name: str) -> bool:
    """Whether a namespace belongs to a lab of some other program that is still running on this machine."""
    words = name.split("-")
    pid = int(words[2]) if len(words) > 3 and words[2].isdigit() else 0
    family = []
    while pid > 1:
        family.append(pid)
        pid = parent_of(str(pid))
    return bool(family) and pid == 1 and os.getpid() not in family


def names_in(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()


def child_processes(pids: set[str]) -> list[str]:
    """Those of the pids that are children of this process, zombies too, save what Python keeps for the session."""
    children = [pid for pid in pids if pid.isdigit() and parent_of(pid) == os.getpid()]
    return [pid for pid in children if not any(word in command_of(pid) for word in LASTING)]


def parent_of(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_of(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode(errors="replace")[:120].strip() or "(zombie)"


def sockets_of(pid: str) -> set[str]:
    """The inodes of its sockets."""
    found = set()
    for name in names_in(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(target[8:-1])
    return found


def listening(sockets: set[str]) -> list[str]:
    """The ports that belong to listening ones among these sockets."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6") if sockets else ():
        for row in Path(table).read_text().splitlines()[1:]:
            words = row.split()
            if words[3] == "0A" and words[9] in sockets:
                found.append(f"port {int(words[1].rpartition(':')[2], 16)}")
    return found


def restore(environ: dict[str, str]) -> list[str]:
    """Put the environment back; the names of what had changed."""
    names = (environ.keys() | os.environ.keys()) - BY_IMPORT
    changed = sorted(name for name in names if environ.get(name) != os.environ.get(name))
    for name in changed:
        if name in environ:
            os.environ[name] = environ[name]
        else:
            del os.environ[name]
    return changed


RUNS = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Records of runs that tests start go to a folder of this session, not into the repository."""
    if "PACELINE_RUNS" not in os.environ:
        config.stash[RUNS] = Path(tempfile.mkdtemp(prefix="paceline-tests-"))
        os.environ["PACELINE_RUNS"] = str(config.stash[RUNS])


def pytest_unconfigure(config: pytest.Config) -> None:
    if RUNS in config.stash:
        shutil.rmtree(config.stash[RUNS], ignore_errors=True)
        del os.environ["PACELINE_RUNS"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give all tests of a file in SHARED to one process with --dist loadgroup.

    Marks of pytest-xdist 3.8 would do so, but it keeps them in an attribute that pytest 9.2 has no longer.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SharedJobs(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file in SHARED else nodeid

    return SharedJobs(config, log) if config.getoption("dist") == "loadgroup" else None


def skipped(config: pytest.Config) -> list[Any]:
    reporter: Any = config.pluginmanager.getplugin("terminalreporter")
    return reporter.stats.get("skipped", []) if reporter else []


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In CI everything must be able to run."""
    if os.environ.get("PACELINE_CI") == "1" and exitstatus == 0 and skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    verdict = "FAILED in CI, could not run" if os.environ.get("PACELINE_CI") == "1" else "could not run"
    for report in skipped(terminalreporter.config):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        line = reason.removeprefix("Skipped: ").splitlines()[0]
        terminalreporter.write_line(f"{verdict}: {report.nodeid}: {line}", yellow=True)


@pytest.fixture(autouse=True, scope="session")
def one_thread_per_rank() -> None:
    """Ranks that are threads share two cores; more threads inside torch would only get in their way."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_core_for_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keep a test without processes of its own on one core, where ranks that are threads hand over Python's lock.

    On two cores they wake each other only to wait for it, which takes twice the time. Tests of what is done without
    that lock (comm, cluster, engine and measure), of what depends on the number of cores (race), and real processes,
    have all cores.
    """
    cores = os.sched_getaffinity(0)
    room = request.path.relative_to(Path(__file__).parent).parts[0]
    if room not in ALL_CORES and request.node.get_closest_marker("multi") is None:
        os.sched_setaffinity(0, {sorted(cores)[worker_number() % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)


def worker_number() -> int:
    """The number of this process among those of pytest-xdist; without it any number, so that runs do not meet."""
    name = os.environ.get("PYTEST_XDIST_WORKER", "")
    return int(name.removeprefix("gw")) if name else os.getpid()


@pytest.fixture(scope="session")
def forks(one_thread_per_rank: None) -> Iterator[None]:
    """Keep the process that forks the workers of `tests.forked.paceline`, which nobody leaves behind."""
    from tests.forked import zygote

    with zygote():
        yield


@pytest.fixture
def forked_workers(forks: None) -> Iterator[None]:
    """Fork the workers that a test starts without a command line."""
    from tests.forked import forked_workers

    with forked_workers():
        yield

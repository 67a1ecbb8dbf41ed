"""A process that has torch imported and forks workers from itself, so that a restarted worker starts in milliseconds.

    launcher --request (argv, environ, pipes)--> zygote --fork--> helper --fork--> worker
             <------------- pid ---------------          helper ends, and the launcher adopts the worker

The launcher is a child subreaper, so that it is the parent of every worker, as if it had spawned it: exit statuses,
signals and logs work alike, and a killed zygote takes nobody with it. The launcher then spawns workers again.

A process may fork only while it has one thread. OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1 see to that during the
imports, and the zygote ends if it has more. A worker gets the environment, session and pipes of its request, seeds
random numbers anew, closes all inherited descriptors, and runs its script. numpy's own BLAS keeps one thread.

python -c "from paceline.cluster.zygote import main; main()" DESCRIPTOR MODULE...
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import sys
import traceback
import types
from pathlib import Path
from typing import Any

HEAD = 8  # bytes: the length of a request, or a pid
LONGEST = 1 << 24  # bytes of a request; it comes from the launcher alone
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PROGRAM = "import sys; sys.path.pop(0); from paceline.cluster.zygote import main; main()"


def main() -> None:
    """Import the modules of the command line, then fork a worker per request until the launcher is gone."""
    link = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit("paceline: a process with several threads cannot fork workers")
    gc.collect()
    gc.freeze()  # a collection in a worker would touch, and so copy, all objects
    link.sendall(os.getpid().to_bytes(HEAD, "little"))
    while (request := receive(link)) is not None:
        spec, pipes = request
        pid, start = _fork(pipes)
        if pid == 0:
            link.detach()
            _become(spec, pipes)
        for pipe in pipes:
            os.close(pipe)
        link.sendall(pid.to_bytes(HEAD, "little"))
        with contextlib.suppress(BrokenPipeError):  # the worker was killed
            os.write(start, b"!")
        os.close(start)


def receive(link: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next request with its descriptors, or None at the end of the connection."""
    head, pipes, _, _ = socket.recv_fds(link, HEAD, 2)
    length = int.from_bytes(head, "little")
    if len(head) < HEAD or length > LONGEST:
        return None
    body = bytearray()
    while len(body) < length:
        block = link.recv(length - len(body))
        if not block:
            return None
        body += block
    return json.loads(body), pipes


def send(link: socket.socket, spec: dict[str, Any], pipes: list[int]) -> None:
    body = json.dumps(spec).encode()
    socket.send_fds(link, [len(body).to_bytes(HEAD, "little")], pipes)
    link.sendall(body)


def _fork(pipes: list[int]) -> tuple[int, int]:
    """Return the pid of a new worker, which has its own session and no parent, and a pipe; 0, 0 in the worker itself.

    The worker begins when it gets a byte through that pipe, and exits if the pipe is closed without one: a launcher
    that has given up starts another worker, and there must not be two. Raises OSError if there is no worker.
    """
    read, write = os.pipe()
    begin, start = os.pipe()
    helper = os.fork()
    if helper:
        os.close(write)
        os.close(begin)
        os.waitpid(helper, 0)
        pid = os.read(read, HEAD)
        os.close(read)
        if len(pid) < HEAD:
            os.close(start)
            raise OSError("no worker could be forked")
        return int.from_bytes(pid, "little"), start
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        for place, pipe in enumerate((os.open(os.devnull, os.O_RDONLY), *pipes)):
            os.dup2(pipe, place)
        os.close(start)
        os.write(write, os.getpid().to_bytes(HEAD, "little"))
        if os.read(begin, 1):
            return 0, 0
    except OSError:
        pass  # there is nobody to tell: the zygote reads no pid
    os._exit(1)


def _become(spec: dict[str, Any], pipes: list[int]) -> None:
    """Run the worker of a request, then exit."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(spec["environ"])
    _seed()
    _set_threads()
    gc.unfreeze()
    code = 1
    try:
        run(spec["words"])
        code = 0
    except SystemExit as end:
        code = _code_of(end)
    except BaseException as problem:
        _report(problem)
        if isinstance(problem, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    sys.exit(code)  # runs what was registered with atexit


def run(words: list[str]) -> None:
    """Run `SCRIPT ARGUMENTS` or `-m MODULE ARGUMENTS` as python does."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if words[0] == "-m":
        import runpy

        sys.argv = words[1:]
        _put_first(os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    path = words[0]
    sys.argv = words
    _put_first(str(Path(path).resolve().parent))
    vars(module).update(__file__=path, __builtins__=__builtins__)
    exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(module))


def _put_first(folder: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _seed() -> None:
    """Seed random generators, as in a new process. Torch draws the seed of its generator when it is imported."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()


def _set_threads() -> None:
    torch, threads = sys.modules.get("torch"), os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None:
        torch.set_num_threads(int(threads) if threads.isdecimal() and int(threads) else len(os.sched_getaffinity(0)))


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _report(problem: BaseException) -> None:
    """Print the traceback without the frames of this file."""
    where = problem.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        where = where.tb_next
    traceback.print_exception(type(problem), problem, where)

"""Rank 1 ends while it holds two locks, or after it released them; rank 0 says what it saw when it wanted them.

RANK=0 WORLD_SIZE=2 PACELINE_STORE=FOLDER python tests/multi/holder.py dies|releases
"""

import contextlib
import os
import signal
import sys

import torch

import paceline


def hold_and_die(worker, locks, end):
    with contextlib.ExitStack() as held:
        for lock in locks:
            held.enter_context(lock.held("it"))
        if end == "dies":
            worker.comm.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
    worker.comm.barrier()
    os.kill(os.getpid(), signal.SIGKILL)


def with_mutex(win):
    with win.mutex(0):
        pass


def main(end):
    worker = paceline.join(comm="shm", deadline=20)
    win = paceline.window(torch.zeros(4), topology="ring")
    if worker.rank == 1:
        hold_and_die(worker, [win._buffers._mutexes[0], win._buffers._buffers[0, 1]._lock], end)
    worker.comm.barrier()
    for use in (with_mutex, paceline.Window.collect):
        try:
            use(win)
            print("taken")
        except paceline.PacelineError as problem:
            print(type(problem).__name__, getattr(problem, "rank", None), problem, sep="; ")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

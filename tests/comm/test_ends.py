"""Ranks that do not keep step finish at different times: the first waits for the last, longer than a deadline."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from paceline.comm.service import Attendant, Service
from paceline.comm.thread import ThreadComm, ThreadGroup
from paceline.comm.torch.served import WindowService
from paceline.errors import PeerLost
from paceline.train.serve import serve

DEADLINE = 0.3  # seconds


def at_the_end(*ends):
    """Run two workers, which end as the test says, and a server; return what each of the three raised."""
    workers, everybody = ThreadGroup(2), ThreadGroup(3)

    def work(rank):
        comm = ThreadComm(rank, workers)
        comm.service = Service(ThreadComm(rank, everybody), 1)
        comm.service.comm.get_ready()
        for each in (comm, comm.service.comm):
            each._space.queue.deadline = DEADLINE
        try:
            ends[rank](comm)
        except PeerLost:
            comm.close("failed")
            raise

    def help_them():
        attendant = Attendant(ThreadComm(2, everybody), 2)
        attendant.comm.get_ready()
        serve(attendant)
        attendant.close()

    raised = [None] * 3

    def body(rank):
        try:
            help_them() if rank == 2 else work(rank)
        except PeerLost as problem:
            raised[rank] = str(problem)

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def late(comm):
    time.sleep(3 * DEADLINE)
    comm.close()


def early(comm):
    comm.close()


def failing(comm):
    time.sleep(3 * DEADLINE)
    comm.close("failed")


@pytest.mark.parametrize("ends", [(late, early), (early, late)])
def test_a_worker_that_is_done_waits_for_the_others(ends):
    assert at_the_end(*ends) == [None, None, None]


def test_a_worker_that_waits_at_the_end_is_told_of_one_that_fails():
    assert at_the_end(early, failing)[0] == "rank 1 failed during barrier"


class Windows(WindowService):
    """A service whose threads the test controls, without a network."""

    def __init__(self, *bodies):
        self.comm, self.failure = SimpleNamespace(rank=0, size=1 + len(bodies), deadline=0.05), ""
        self.said, self.hung_up = [], False
        self._threads = [threading.Thread(target=body, args=(self,)) for body in bodies]
        for thread in self._threads:
            thread.start()

    def ask(self, what, *request):
        self.said.append(what)

    def settle(self):
        pass

    def _hang_up(self):
        self.hung_up = True


def test_windows_are_served_until_the_last_goodbye():
    windows = Windows(lambda _: time.sleep(0.05), lambda _: time.sleep(0.6))
    windows.close("")
    assert not any(thread.is_alive() for thread in windows._threads)
    assert windows.said == ["goodbye to rank 1", "goodbye to rank 2"]
    assert not windows.hung_up


def test_a_rank_that_is_lost_before_its_goodbye_ends_the_wait_of_the_others():
    over = threading.Event()

    def lost(windows):
        time.sleep(0.3)
        windows.failure = "rank 2: Connection closed by peer"

    windows = Windows(lambda _: over.wait(20), lost)
    try:
        with pytest.raises(PeerLost, match="rank 2: Connection closed by peer"):
            windows.close("")
        assert windows.hung_up
        assert windows._threads[0].is_alive(), "nobody waited for the other"
    finally:
        over.set()
        for thread in windows._threads:
            thread.join()


RANK = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from paceline.comm.torch.gloo import GlooComm
from paceline.errors import PeerLost

rank, folder = int(sys.argv[1]), Path(sys.argv[2])
(folder / f"rank-{rank}").touch()
while not (folder / f"rank-{1 - rank}").exists():
    time.sleep(0.01)
comm = GlooComm(rank, 2, dist.FileStore(str(folder / "store"), 2), 2.0)
window = comm.window(4, torch.float32, [[1], [0]])
time.sleep(2.5 * rank)
comm._meet(60)
if rank:
    time.sleep(2.5)
    window.put(0, torch.ones(4)).wait()
    os._exit(0)
try:
    comm.close()
except PeerLost as problem:
    print(window._buffers[1].data.tolist(), problem, flush=True)
os._exit(0)
"""


@pytest.mark.multi
def test_over_gloo_the_first_waits_for_the_last_and_notices_that_it_died(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = ranks[0].communicate(timeout=90)[0]
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert said.startswith("[1.0, 1.0, 1.0, 1.0] windows of rank 0 are no longer served: rank 1: ")

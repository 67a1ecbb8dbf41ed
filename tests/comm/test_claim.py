"""Which process may join: one running process per rank, and none with an ancestor in the job."""

import os
import subprocess
import sys
import time

import pytest

from paceline.comm import claim
from paceline.comm.claim import claim_turn, start_time
from paceline.comm.rendezvous import FolderStore, MemoryStore, TurnStore
from paceline.comm.shm.memory import host_identity
from paceline.errors import WrongCommand


@pytest.fixture(params=["memory", "folder"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else FolderStore(tmp_path)


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def joined(store, rank, pid):
    store.set(claim._joined(claim.Process(host_identity(), pid, start_time(pid))), str(rank))


def held_by(store, rank, turn, pid, start):
    store.claim(f"process/{rank}/{turn}", f"{host_identity()} {pid} {start} x")


def test_a_process_that_joins_again_gets_the_next_turn(store):
    assert [claim_turn(store, 0) for _ in range(3)] == [0, 1, 2]
    assert claim_turn(store, 1) == 0


def test_a_rank_that_another_living_process_holds_is_refused(store, child):
    held_by(store, 0, 0, child.pid, start_time(child.pid))
    with pytest.raises(WrongCommand, match=f"process {child.pid} is rank 0 of this job and still runs.*__main__"):
        claim_turn(store, 0)


def test_a_process_that_has_ended_leaves_its_rank(store, child):
    held_by(store, 0, 0, child.pid, start_time(child.pid))
    child.kill()
    while start_time(child.pid):  # a zombie has ended, too
        time.sleep(0.001)
    assert claim_turn(store, 0) == 1


def test_a_pid_that_was_given_to_another_process_counts_as_ended(store, child):
    held_by(store, 0, 0, child.pid, "1")
    assert claim_turn(store, 0) == 1


def test_a_process_of_another_host_counts_as_running(store):
    store.claim("process/0/0", "another-host 1 1 x")
    with pytest.raises(WrongCommand, match="process 1 is rank 0"):
        claim_turn(store, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_child_of_any_rank_is_refused_whatever_rank_it_wants(store, rank, monkeypatch):
    parent = os.getppid()
    joined(store, 1, parent)
    with pytest.raises(WrongCommand, match=f"it was started by process {parent}, which joined the same job as rank 1"):
        claim_turn(store, rank)


def test_a_process_that_joins_is_found_by_its_children(store):
    claim_turn(store, 3)
    me = claim.Process(host_identity(), os.getpid(), start_time(os.getpid()))
    assert store.look(claim._joined(me)) == "3"


def test_ancestors_reach_the_first_process():
    pids = [process.pid for process in claim._ancestors("here")]
    parents = [int(claim._status(pid)[1]) for pid in pids]
    assert pids[0] == os.getppid()
    assert pids[1:] == parents[:-1]
    assert parents[-1] == 0  # of the first process that this one can see


def test_names_of_one_turn_are_invisible_in_the_next(store):
    first, second = TurnStore(store, 0), TurnStore(store, 1)
    first.set("control", "old")
    assert second.look("control") is None
    assert first.look("control") == "old"
    assert first.get("control", 1) == "old"
    assert second.claim("control", "new") == "new"
    assert second.claim("control", "newer") == "new"


def test_claims_of_many_processes_at_once_go_to_one(tmp_path):
    """Each claims one name with its own word; all must see the same winner."""
    code = (
        "import sys; from pathlib import Path; from paceline.comm.rendezvous import FolderStore; "
        "print(FolderStore(Path(sys.argv[1])).claim('process/0/0', sys.argv[2]))"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(k)], stdout=subprocess.PIPE, text=True)
        for k in range(4)
    ]
    winners = {racer.communicate(timeout=60)[0].strip() for racer in racers}
    assert len(winners) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["process.0.0"]

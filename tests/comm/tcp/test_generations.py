"""Connections of an elastic job: every generation has its own, and the listening socket stays."""

import os
import resource
import socket
import threading
import time

import pytest
import torch

from paceline.comm.tcp.gate import enter
from paceline.comm.tcp.station import Listener
from paceline.comm.tcp.tcp import MemberComm
from paceline.comm.tcp.wire import CONTROL, NONCE, Header, Hello
from paceline.errors import PeerLost

TOKEN = b"the token of a job"


@pytest.fixture
def listeners():
    made = [Listener("127.0.0.1", TOKEN) for _ in range(3)]
    yield made
    for listener in made:
        listener.close()


def silent(comm, late):
    """Watch nobody."""


def in_generation(listeners, generation, work, watch=silent, late=()):
    """Run work(comm) on members of a generation; those in `late` hear of it later. Return results or errors."""
    places, results = [listener.place for listener in listeners], [None] * len(listeners)

    def body(rank):
        if rank in late:
            time.sleep(0.3)
        try:
            comm = MemberComm(rank, listeners[rank], places, generation, deadline=20, entering=10, watch=watch)
            try:
                results[rank] = work(comm)
            finally:
                comm.end(reset=False)
        except PeerLost as problem:
            results[rank] = problem

    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(len(listeners))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def summed(comm):
    result = torch.zeros(100_000)
    comm.all_sum(torch.full((100_000,), float(comm.rank + 1)), result, "a sum").wait()
    comm.barrier()
    return float(result[0])


def test_generations_follow_each_other_on_the_same_port(listeners):
    assert in_generation(listeners, 1, summed) == [6.0, 6.0, 6.0]
    assert in_generation(listeners[:2], 2, summed) == [3.0, 3.0]
    assert in_generation(listeners, 7, summed) == [6.0, 6.0, 6.0]


def test_connections_of_a_member_that_heard_of_a_generation_first_are_kept(listeners):
    assert in_generation(listeners, 1, summed) == [6.0, 6.0, 6.0]
    assert in_generation(listeners, 2, summed, late=(0,)) == [6.0, 6.0, 6.0]


def test_a_connection_and_a_frame_of_an_old_generation_are_refused_and_logged(listeners, caplog):
    in_generation(listeners, 1, summed)
    stale = Hello(CONTROL, 0, 1, 0, 1, os.urandom(NONCE))

    def work(comm):
        if comm.rank == 0:
            with pytest.raises(PeerLost, match="refused the connection"):
                enter("127.0.0.1", listeners[0].place["port"], stale, TOKEN, 5)
        comm.barrier()
        if comm.rank == 1:
            with comm.mesh.station.pump.state:
                comm.mesh.lines[0][0]._socket.sendall(Header(0, 0, 0, 1, 0, 0, 16).pack() + b"\0" * 16)
            time.sleep(0.5)
        if comm.rank == 0:
            comm.all_sum(torch.ones(4), torch.zeros(4), "a sum").wait()
        return "no harm"

    results = in_generation(listeners[:2], 2, work)
    assert "sent a frame of generation 1 in generation 2" in str(results[0])
    assert "it is of generation 1, this is 2" in caplog.text
    assert "sent a frame of generation 1 in generation 2" in caplog.text


def test_strangers_leave_no_trace_between_generations(listeners, caplog):
    port = listeners[0].place["port"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(os.urandom(200))
    gate = listeners[0].gate
    assert listeners[0].pump.wait(lambda: gate.refused >= 200, 20), gate.refused
    with pytest.raises(PeerLost, match="does not know the token"):
        enter("127.0.0.1", port, Hello(CONTROL, 0, 9, 0, 1, os.urandom(NONCE)), b"another", 5)
    assert not gate._early
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000
    assert in_generation(listeners, 1, summed) == [6.0, 6.0, 6.0]


def test_a_member_that_leaves_ends_the_wait_of_the_others_at_once(listeners):
    def work(comm):
        if comm.rank == 2:
            time.sleep(0.2)
            return None  # it leaves; the others wait for its numbers
        began = time.monotonic()
        with pytest.raises(PeerLost):
            comm.all_sum(torch.ones(100_000), torch.zeros(100_000), "a sum").wait()
        return time.monotonic() - began < 5

    assert in_generation(listeners, 1, work) == [True, True, None]


def test_who_waits_is_asked_whom_it_waits_for_and_signs_of_progress_arrive(listeners):
    seen = []

    def watch(comm, late):
        if comm is not None and comm.rank == 0:
            seen.append((tuple(late), comm.mesh.beats.get(2)))

    def work(comm):
        if comm.rank == 2:
            for _ in range(3):
                comm.mesh.beat(True)
                time.sleep(0.1)
        return summed(comm)

    assert in_generation(listeners, 1, work, watch) == [6.0, 6.0, 6.0]
    assert any(2 in late for late, _ in seen)
    assert max(beat for _, beat in seen if beat)[0] >= 2
    assert any(away for _, beat in seen if beat for away in beat[1:])

"""Strangers at the port of a rank: refused, logged, and without a trace in memory."""

import os
import resource
import socket
import threading
import time

import pytest
import torch

from paceline.comm.rendezvous import MemoryStore
from paceline.comm.tcp.gate import PATIENCE, PENDING, enter
from paceline.comm.tcp.station import Station, interface_address, own_address
from paceline.comm.tcp.wire import ANSWER_BYTES, CONTROL, HEADER_BYTES, NONCE, Header, Hello, proof, proves
from paceline.errors import PeerLost, WrongCommand
from tests.comm.tcp.ranks import run_tcp_ranks

TOKEN = b"4711 and more"


@pytest.fixture
def station():
    """Rank 0 of two, which waits for rank 1."""
    store = MemoryStore()
    store.set("tcp/3/1", '{"address": "127.0.0.1", "port": 1, "host": "b", "pid": 7}')
    made = Station(0, 2, store, 5.0, address="127.0.0.1", token=TOKEN, generation=3)
    yield made
    made.close()


def greeting(generation=3, rank=1, mesh=0):
    return Hello(CONTROL, 0, generation, mesh, rank, os.urandom(NONCE))


def refusals(station, count):
    """Wait until so many connections were refused."""
    assert station.pump.wait(lambda: station.gate.refused >= count, 20), station.gate.refused
    return station.gate.refused


def test_who_knows_the_token_is_welcome(station):
    with enter("127.0.0.1", station.gate.port, greeting(), TOKEN, 5):
        assert list(station.connect(0, CONTROL, (0, 1))) == [1]
        station.close()


def test_a_wrong_token_is_refused_on_both_sides(station, caplog):
    with pytest.raises(PeerLost, match="does not know the token of this job"):
        enter("127.0.0.1", station.gate.port, greeting(), b"another token", 5)
    with socket.create_connection(("127.0.0.1", station.gate.port)) as stranger:
        stranger.sendall(greeting().pack())
        assert len(stranger.recv(ANSWER_BYTES, socket.MSG_WAITALL)) == ANSWER_BYTES
        stranger.sendall(b"\0" * 32)
        assert stranger.recv(1) == b"", "it must be closed"
    refusals(station, 2)
    assert "it does not know the token of this job" in caplog.text
    assert TOKEN.decode() not in caplog.text


def test_another_generation_is_refused(station, caplog):
    with pytest.raises(PeerLost, match="refused the connection"):
        enter("127.0.0.1", station.gate.port, greeting(generation=2), TOKEN, 5)
    assert "it is of generation 2, this is 3" in caplog.text


def test_a_replayed_handshake_proves_nothing(station):
    """The nonce of the acceptor is new every time, so an overheard proof is worth nothing."""
    hello = greeting().pack()
    answers = []
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", station.gate.port)) as stranger:
            stranger.sendall(hello)
            answers.append(stranger.recv(ANSWER_BYTES, socket.MSG_WAITALL))
    overheard = proof(TOKEN, b"connector", hello, answers[0][:NONCE])
    assert proves(overheard, TOKEN, b"connector", hello, answers[0][:NONCE])
    assert not proves(overheard, TOKEN, b"connector", hello, answers[1][:NONCE])


def test_one_rank_has_one_connection_of_each_kind(station):
    with enter("127.0.0.1", station.gate.port, greeting(), TOKEN, 5) as first:
        with enter("127.0.0.1", station.gate.port, greeting(), TOKEN, 5) as second:
            assert second.recv(1) == b""
        assert first.fileno() >= 0
    assert refusals(station, 1) == 1


def test_random_bytes_are_refused_and_memory_stays_flat(station, caplog):
    generator = torch.Generator().manual_seed(7)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(300):
        noise = bytes(torch.randint(0, 256, (100 + number % 50,), generator=generator, dtype=torch.uint8).tolist())
        with socket.create_connection(("127.0.0.1", station.gate.port)) as stranger:
            stranger.sendall(noise)
    refusals(station, 300)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 20_000, f"{grown} kB more"
    assert caplog.text.count("refused a connection") <= 20, "a flood does not fill the log"


def test_silent_visitors_make_room_for_others(station):
    silent = [socket.create_connection(("127.0.0.1", station.gate.port)) for _ in range(PENDING + 3)]
    try:
        refusals(station, 3)
        with enter("127.0.0.1", station.gate.port, greeting(), TOKEN, 5):
            assert station.pump.wait(lambda: station._waiting, 5)
    finally:
        for one in silent:
            one.close()
    assert PATIENCE < 10


def test_a_frame_of_an_old_generation_ends_the_connection():
    """Rank 1 sends a frame that it has kept from generation 4 into generation 5."""
    lost = {}

    def work(comm):
        if comm.rank == 1:
            line = comm.mesh.lines[0][0]
            with comm.mesh.station.pump.state:
                line._socket.sendall(Header(0, 0, 0, 4, 0, 0, 16).pack() + b"\0" * 16)
            time.sleep(0.2)
            comm.mesh.problem = PeerLost("enough")
            raise PeerLost("enough")
        with pytest.raises(PeerLost) as caught:
            comm.all_sum(torch.ones(4), torch.zeros(4), "a sum").wait(10)
        lost[0] = caught.value

    with pytest.raises(PeerLost, match="enough"):
        run_tcp_ranks(2, work, generation=5)
    assert "sent a frame of generation 4 in generation 5" in str(lost[0])
    assert lost[0].rank == 1


def test_a_length_that_nobody_expects_allocates_nothing():
    """A header that promises 4 GB for a sum of 4 numbers is a call that differs; nothing is read."""
    lost = {}

    def work(comm):
        if comm.rank == 1:
            with comm.mesh.station.pump.state:
                comm.mesh.lines[0][0]._socket.sendall(Header(0, 0, 0, 0, 0, 1, 1 << 32).pack())
            time.sleep(0.2)
            raise PeerLost("enough")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(Exception) as caught:
            comm.all_sum(torch.ones(4), torch.zeros(4), "a sum").wait(10)
        lost[0] = type(caught.value).__name__
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000

    with pytest.raises(PeerLost, match="enough"):
        run_tcp_ranks(2, work)
    assert lost[0] in ("CallMismatch", "PeerLost")


def test_ranks_with_different_tokens_do_not_meet():
    problems = []

    def join(rank, store):
        station = Station(rank, 2, store, 3.0, address="127.0.0.1", token=f"token {rank}".encode())
        try:
            station.connect(0, CONTROL, (0, 1))
        except PeerLost as problem:
            problems.append(str(problem))
        station.close()

    store = MemoryStore()
    stations = [threading.Thread(target=join, args=(rank, store)) for rank in range(2)]
    for thread in stations:
        thread.start()
    for thread in stations:
        thread.join()
    assert any("does not know the token" in problem for problem in problems)


def test_a_rank_listens_on_loopback_unless_another_interface_is_named():
    assert own_address({}, one_host=True) == "127.0.0.1"
    assert own_address({"GLOO_SOCKET_IFNAME": "lo"}, one_host=True) == "127.0.0.1"
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(WrongCommand, match=r"network interface nope0: .*this host has .*lo"):
        own_address({"PACELINE_INTERFACE": "nope0"}, one_host=True)


def test_a_header_has_24_bytes():
    header = Header(1, 0, 2, 3, 4, 5, 6)
    assert len(header.pack()) == HEADER_BYTES == 24
    assert Header.parse(header.pack()) == header

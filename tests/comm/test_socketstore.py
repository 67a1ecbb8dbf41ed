"""The store over TCP: ranks of several hosts meet there, and strangers get nowhere."""

import socket
import threading
import time
import tracemalloc

import pytest

from paceline.comm import frames
from paceline.comm.frames import BadFrame, Unpacker, new_token, pack
from paceline.comm.socketstore import MOST_STRANGERS, SocketStore, StoreServer, open_store
from paceline.errors import PeerLost


@pytest.fixture
def served():
    token = new_token()
    server = StoreServer(token)
    stores = []

    def opened(key=token):
        stores.append(SocketStore("127.0.0.1", server.port, key, 5.0))
        return stores[-1]

    yield server, opened
    for store in stores:
        store.close()
    server.close()


def test_it_holds_texts_and_the_first_claim(served):
    first, second = served[1](), served[1]()
    first.set("a", "1")
    assert second.get("a", 5) == "1"
    assert second.look("b") is None
    assert (first.claim("b", "mine"), second.claim("b", "yours")) == ("mine", "mine")
    first.set("a", "ü" * 1000)
    assert second.look("a") == "ü" * 1000


def test_a_rank_waits_for_another(served):
    first, second = served[1](), served[1]()
    found = []
    reader = threading.Thread(target=lambda: found.append(first.get("late", 30)))
    reader.start()
    time.sleep(0.05)
    second.set("late", "here")
    reader.join()
    assert found == ["here"]


def test_waiting_ends_with_the_name_that_nobody_announced(served):
    with pytest.raises(PeerLost, match=r"no rank announced 'x' within 0 s"):
        served[1]().get("x", 0.05)


def test_a_wrong_token_is_refused(served):
    with pytest.raises(PeerLost, match="refused this process"):
        served[1](new_token())
    assert served[1]().look("a") is None, "the right one still works"


def test_nothing_is_answered_before_the_proof(served):
    with socket.create_connection(("127.0.0.1", served[0].port), timeout=5) as line:
        frames.receive(line)
        frames.send(line, {"set": "a", "text": "1"})
        with pytest.raises((BadFrame, OSError)):
            frames.receive(line)
    assert served[1]().look("a") is None


def test_random_bytes_and_huge_lengths_cost_no_memory(served):
    tracemalloc.start()
    for junk in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n" * 9, b"\x7f\xff\xff\xff" + b"x" * 100, bytes(3)):
        with socket.create_connection(("127.0.0.1", served[0].port), timeout=5) as line:
            line.sendall(junk)
            line.shutdown(socket.SHUT_WR)
            while line.recv(1 << 16):
                pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert served[1]().look("a") is None


def test_strangers_cannot_take_all_places(served):
    lines = [socket.create_connection(("127.0.0.1", served[0].port), timeout=5) for _ in range(MOST_STRANGERS)]
    try:
        for line in lines:
            frames.receive(line)
        with socket.create_connection(("127.0.0.1", served[0].port), timeout=5) as late:
            assert late.recv(1) == b""
    finally:
        for line in lines:
            line.close()


def test_a_server_that_does_not_know_the_token_is_refused_too():
    """Otherwise whoever listens first could feed ranks with addresses."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def pretend():
            line, _ = door.accept()
            with line:
                frames.send(line, {"nonce": "00"})
                frames.receive(line)
                frames.send(line, {"proof": "00"})

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(PeerLost, match="does not know the token"):
            SocketStore("127.0.0.1", door.getsockname()[1], new_token(), 5.0)
        thread.join()


def test_the_token_does_not_travel():
    token, sent = new_token(), []
    here, there = socket.socketpair()
    with here, there:
        frames.send(there, {"nonce": "aa"})
        frames.send(there, {"proof": "wrong"})
        with pytest.raises(BadFrame, match="token"):
            frames.introduce(here, token)
        sent.append(there.recv(1 << 16))
    assert token.encode() not in sent[0]


def test_frames_are_cut_anywhere():
    data = pack({"a": 1}) + pack([2])
    unpacker, found = Unpacker(), []
    for at in range(len(data)):
        found += unpacker.add(data[at : at + 1])
    assert found == [{"a": 1}, [2]]
    with pytest.raises(BadFrame, match="at most"):
        pack("x" * (frames.LONGEST + 1))
    with pytest.raises(BadFrame, match="not JSON"):
        Unpacker().add(b"\0\0\0\x02{{")


def test_an_address_is_checked():
    with pytest.raises(PeerLost, match="is no store"):
        open_store("tcp://nowhere", "", 1.0)
    with pytest.raises(PeerLost, match="cannot be reached"):
        open_store("tcp://127.0.0.1:1", "", 1.0)

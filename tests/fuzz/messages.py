"""Targets that read messages: of elastic jobs, agents, stores, tcp connections, and streams of batches."""

import json
import os
import socket
import threading

import torch

from paceline.cluster.agent import FILE, MARK
from paceline.cluster.agent_link import AgentLink
from paceline.cluster.facts import Facts
from paceline.cluster.failure import failed, in_order
from paceline.comm import frames
from paceline.comm.socketstore import SocketStore, StoreServer
from paceline.comm.tcp.gate import Gate
from paceline.comm.tcp.pump import Pump
from paceline.comm.tcp.wire import HELLO_BYTES, NONCE, Hello, proof
from paceline.elastic.client import Client
from paceline.elastic.coordinator import Coordinator
from paceline.elastic.frames import connect_to, encode
from paceline.elastic.protocol import Group, Registry
from paceline.elastic.status import ask, contact_of
from paceline.errors import WorkerFailed, WorkloadError
from paceline.types import Host
from paceline.workload.stream import layout
from paceline.workload.stream.pipe import seal, unseal
from tests.fuzz import mutate

REPORT = {"kind": "report", "generation": 0, "committed": 0, "ready": False, "suspects": [], "holds": False}
MEMBER = [
    REPORT,
    {"kind": "steps", "generation": 1, "steps": 3},
    {"kind": "incident", "what": "slow", "member": "a"},
    {"kind": "bye", "finished": False, "parting": False},
]


def coordinators(dice, folder):
    """A member that sends anything is refused or served, and the coordinator goes on answering."""
    coordinator = Coordinator(folder, Registry(start=1))
    try:
        token = (folder / "token").read_text()
        hello = {"kind": "hello", "token": token, "member": "a", "pid": os.getpid()}
        messages = [hello, *dice.sample(MEMBER, dice.randint(1, 4))]
        odd = dice.randrange(len(messages))
        messages[odd] = (mutate.tree(dice, [messages[odd]]) or [0])[0]
        data = b"".join(_framed(message) for message in messages)
        data = mutate.bytes_of(dice, data) if dice.random() < 0.2 else data
        with connect_to((folder / "address").read_text(), 1.0) as line:
            _turns(coordinator, 1)
            for start in range(0, len(data), 700):
                _send(line, data[start : start + 700])
                _turns(coordinator, 1)
            _turns(coordinator, 2)
        _turns(coordinator, 2)
        with connect_to((folder / "address").read_text(), 1.0) as line:
            line.sendall(encode({"kind": "status", "token": token}))
            _turns(coordinator, 3)
            line.setblocking(False)
            status = line.recv(1 << 17)
        assert b'"kind": "status"' in status or b'"kind":"status"' in status
        json.loads(status[4:])
    finally:
        coordinator.close()


def _framed(message):
    """A frame with any JSON in it, of which encode() would refuse some."""
    body = json.dumps(message).encode()
    return min(len(body), 2**32 - 1).to_bytes(4, "big") + body


def _hang_up(line):
    try:
        line.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other end has closed it already


def _send(line, data):
    try:
        line.sendall(data)
    except OSError:
        pass  # it was refused


def _turns(coordinator, count):
    for _ in range(count):
        coordinator.turn(0.002)


GROUP = {"kind": "group", "generation": 1, "members": ["a", "b"], "steps": 4, "fresh": []}
ANSWERS = [
    GROUP,
    {"kind": "waiting", "why": "x"},
    {"kind": "lost", "member": "b", "generation": 1},
    {"kind": "change", "generation": 1},
]


def clients(dice, folder):
    """A member survives whatever answers at the address of its coordinator, and believes only whole groups."""
    (folder / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "address").write_text(f"127.0.0.1:{server.getsockname()[1]}")
        client = Client(folder, "a")
        client.report(REPORT)
        line, _ = server.accept()
        with line:
            answers = mutate.tree(dice, [dice.choice(ANSWERS) for _ in range(3)])
            data = b"".join(_framed(answer) for answer in answers)
            line.sendall(mutate.bytes_of(dice, data) if dice.random() < 0.3 else data)
            _hang_up(line)
            try:
                for _ in range(3):
                    client.poll(0.01)
            except SystemExit:
                pass  # somebody who knows where to answer may end a job
            finally:
                client._drop()
    group = client.group
    assert group is None or (isinstance(group, Group) and all(isinstance(member, str) for member in group.members))
    assert group is None or (group.generation > 0 and group.steps >= 0)


STATUS = {
    "kind": "status",
    "folder": "/nowhere",
    "start": 2,
    "most": 8,
    "generation": 1,
    "members": ["a"],
    "waiting": 0,
    "steps": 3,
    "finished": False,
    "rule": "shm",
    "choices": "{}",
    "incidents": [{"what": "died", "at": 1.0}],
}


def statuses(dice, folder):
    """`paceline join` and `paceline watch` ask an address that anything may answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (folder / "token").write_text("t")
        data = _framed(mutate.tree(dice, {**STATUS, "folder": str(folder)}))
        data = mutate.bytes_of(dice, data) if dice.random() < 0.3 else data

        def answer():
            line, _ = server.accept()
            with line:
                line.recv(1 << 16)
                _send(line, data)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            state = ask(address, "t")
        finally:
            thread.join()
    assert type(state["generation"]) is int
    assert type(state["start"]) is int
    assert all(isinstance(member, str) for member in state["members"])
    assert all(isinstance(incident, dict) for incident in state["incidents"])
    contact_of(state, address, "t")


AGENT = [
    {"kind": "hello", **Facts("1", "c", "3.11.0", "2.0", 2, 0, 1.0, 9, 9, "/", {"lo": "127.0.0.1"}).to_dict()},
    {"kind": "serving", "port": 5, "address": "127.0.0.1"},
    {"kind": "started", "pids": {"0": 7, "1": 8}},
    {"kind": "line", "rank": 0, "stream": "stdout", "text": "hello"},
    {"kind": "file", "name": "rank-0.json", "part": "e30="},
    {"kind": "answer", "x": 1},
    {
        "kind": "ended",
        "error": "",
        "failures": [{"rank": 0, "pid": 7, "seconds": 1.0, "signal": "SIGKILL"}, {"rank": 1, "pid": 8, "seconds": 2.0}],
    },
]


def agents(dice, folder):
    """An agent that sends anything is lost with a reason; what it reported can be put in order and into words."""
    source, sink = os.pipe()
    link = AgentLink(Host("a"), [0, 1], source, os.open(os.devnull, os.O_WRONLY))
    try:
        lines = [MARK + json.dumps(one) for one in mutate.tree(dice, dice.sample(AGENT, 5))]
        data = ("\n".join(lines) + "\n").encode()
        os.write(sink, (mutate.bytes_of(dice, data) if dice.random() < 0.3 else data)[:60_000])
        link.read(folder, lambda rank, stream, block: {"stdout": block, "stderr": block}[stream])
        assert link.facts is None or all(_alike(*pair) for pair in _pairs(link.facts))
        assert all(type(rank) is int and type(pid) is int for rank, pid in link.pids.items())
        for failure in in_order(link.failures):
            assert isinstance(failed(failure, folder), WorkerFailed)
        assert all(int(FILE.fullmatch(path.name)[2]) in (0, 1) for path in folder.iterdir())
    finally:
        os.close(sink)
        link.kill()


def _alike(value, default):
    return value is None or type(value) in (type(default), *([int] if type(default) is float else []))


def _pairs(facts):
    plain = Facts(addresses={})
    return [(getattr(facts, name), getattr(plain, name)) for name in Facts.__dataclass_fields__]


REQUESTS = [{"set": "a", "text": "b"}, {"claim": "c", "text": "d"}, {"wait": "a", "seconds": 0.01}]


def stores(dice, folder):
    """Whoever knows the token, or not, sends anything; others are still served, and nothing unheard is stored."""
    server = StoreServer("token")
    try:
        with socket.create_connection((server.address, server.port), timeout=1) as line:
            nonce = frames.receive(line)["nonce"]
            proven = {"nonce": "n", "proof": frames.proof("token", "client", nonce, "n")}
            greeting = proven if dice.random() < 0.7 else mutate.tree(dice, proven)
            requests = mutate.tree(dice, dice.sample(REQUESTS, 3))
            data = b"".join(frames.pack(message) for message in (greeting, *requests))
            _send(line, mutate.bytes_of(dice, data) if dice.random() < 0.4 else data)
        store = SocketStore(server.address, server.port, "token", 2.0)
        try:
            store.set("sound", "text")
            assert store.get("sound", 1.0) == "text"
        finally:
            store.close()
        assert all(isinstance(part, str) for pair in server._texts.items() for part in pair)
    finally:
        server.close()


def handshakes(dice, folder):
    """Only a rank that proves that it knows the token is welcome at a tcp gate."""
    pump, welcomed = Pump("fuzz"), []
    try:
        gate = Gate(pump, "127.0.0.1", b"token", 3, lambda hello, line: welcomed.append((hello, line)))
        hello = Hello(1, 0, 3, 5, 1, bytes(NONCE)).pack()
        sent = mutate.bytes_of(dice, hello) if dice.random() < 0.6 else hello
        damaged = dice.random() < 0.6
        with socket.create_connection(("127.0.0.1", gate.port), timeout=1) as line:
            _send(line, sent)
            answer = b""
            if len(sent) == HELLO_BYTES and Hello.parse(sent) and Hello.parse(sent).generation == 3:
                answer = line.recv(64)
                right = proof(b"token", b"connector", sent, answer[:NONCE])
                wrong = mutate.bytes_of(dice, right)
                _send(line, wrong if damaged else right)
                expected = not damaged or wrong[: len(right)] == right
                pump.wait(lambda: bool(welcomed) or bool(gate.refused), 0.2)
                assert bool(welcomed) == expected
            else:
                _hang_up(line)
                pump.wait(lambda: bool(gate.refused), 1.0)
                assert not welcomed
        with pump.state:
            gate.close()
        for _, line in welcomed:
            line.close()
    finally:
        pump.close()


BATCH = (torch.arange(24, dtype=torch.float32).view(4, 6), torch.arange(4))
TEXT = layout.write(layout.fields_of(BATCH))
CONTENTS = [tensor.numpy().tobytes() for tensor in BATCH]


def batches(dice, folder):
    """A message of a stream is a batch as its header says, or it is refused; the whole seal finds any change."""
    text = json.dumps(mutate.tree(dice, json.loads(TEXT))).encode() if dice.random() < 0.5 else TEXT
    whole = dice.random() < 0.5
    parts = [seal("token", 7, text, CONTENTS if whole else None), text, *CONTENTS]
    changed = dice.random() < 0.6
    if changed:
        at = dice.randrange(len(parts))
        parts[at] = mutate.bytes_of(dice, parts[at])
    if dice.random() < 0.2:
        dice.shuffle(parts)
    sound = [seal("token", 7, text, CONTENTS if whole else None), text, *CONTENTS]
    try:
        number, tensors = unseal("token", [memoryview(bytearray(part)) for part in parts], inside=not whole)
    except ValueError as problem:
        raise WorkloadError("a batch", why=str(problem)) from None
    assert number == 7
    assert sum(tensor.nbytes for tensor in tensors) == sum(map(len, parts[2:]))
    assert parts == sound or not whole


MESSAGES = (coordinators, clients, statuses, agents, stores, handshakes, batches)

"""The coordinator's door: who shows the token is heard, everything else is refused, and memory stays bounded."""

import multiprocessing
import os
import random
import resource
import shutil
import socket
import threading
import time

import pytest

from paceline.elastic.client import DEAF, Client
from paceline.elastic.coordinator import Coordinator
from paceline.elastic.frames import (
    ABSENT,
    FINISHED,
    LONGEST,
    BrokenFrame,
    Inbox,
    encode,
    make_token,
    parse_address,
    same,
)
from paceline.elastic.protocol import Group, Registry
from paceline.elastic.recoveries import summary_of
from paceline.errors import PeerLost, WrongCommand


@pytest.fixture
def coordinator(tmp_path):
    made = Coordinator(tmp_path, Registry(start=1))
    yield made
    made.close()


def stranger(coordinator, block):
    """Send bytes to the coordinator; return whether it closed the connection."""
    with socket.create_connection(parse_address((coordinator._folder / "address").read_text())) as link:
        link.sendall(block)
        link.settimeout(5)
        for _ in range(50):
            coordinator.turn(0.01)
            link.setblocking(False)
            try:
                if not link.recv(1 << 16):  # a worker with the right token gets the reason first
                    return True
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return True
    return False


@pytest.mark.parametrize(
    "block",
    [
        encode({"kind": "hello", "token": "wrong", "member": "x", "pid": 1}),
        encode({"kind": "hello", "member": "x", "pid": 1}),
        encode({"kind": "report", "generation": 1}),
        b"GET / HTTP/1.1\r\n\r\n",
        (LONGEST + 1).to_bytes(4, "little"),
        random.Random(1).randbytes(4096),
    ],
    ids=["wrong token", "no token", "report first", "http", "too long", "random"],
)
def test_a_stranger_is_refused_and_counted(coordinator, block):
    assert stranger(coordinator, block)
    assert coordinator.refused == 1
    assert coordinator._registry.waiting == {}


def test_what_follows_a_goodbye_does_not_end_the_coordinator(coordinator, tmp_path):
    hello = {"kind": "hello", "token": (tmp_path / "token").read_text(), "member": "a", "pid": os.getpid()}
    words = (hello, {"kind": "bye", "finished": False}, {"kind": "steps", "generation": 1, "steps": None})
    assert stranger(coordinator, b"".join(map(encode, words)))
    assert stranger(coordinator, encode({**hello, "pid": 10**30}))
    assert stranger(coordinator, encode(hello) + encode({"kind": "steps", "generation": 1, "steps": 10**30}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("shards", value) for value in (float("inf"), -1, "x")),
        *(("silence", value) for value in (10**400, float("inf"), float("nan"), -1, "x", None)),
    ],
)
def test_a_report_with_a_number_that_is_none_does_not_end_the_coordinator(coordinator, tmp_path, name, value):
    hello = {"kind": "hello", "token": (tmp_path / "token").read_text(), "member": "a", "pid": os.getpid()}
    report = {"kind": "report", "generation": 0, "committed": 0, "ready": False, "suspects": [], "holds": True}
    with socket.create_connection(parse_address((tmp_path / "address").read_text())) as link:
        for message in (hello, report, {**report, "generation": 1, "suspects": ["a"], name: value}):
            assert coordinator.refused == 0
            link.sendall(encode(message))
            for _ in range(5):
                coordinator.turn(0.01)
    assert coordinator._registry.group is not None
    assert coordinator.refused == 1


@pytest.mark.parametrize("name", ["", "\ud800", "a\x1b[2J", "a\n", "a" * 201, None, ["a"]])
def test_a_member_whose_name_is_none_is_refused(coordinator, tmp_path, name):
    """Text that is not Unicode ended the coordinator in its journal, and a member without a name could never leave."""
    hello = {"kind": "hello", "token": (tmp_path / "token").read_text(), "member": name, "pid": os.getpid()}
    assert stranger(coordinator, encode(hello) + encode(WAITING))
    assert coordinator.refused == 1
    assert not coordinator._links
    assert coordinator._registry.group is None


@pytest.mark.parametrize("what", [None, {"what": "died", "generation": "x"}, "\ud800", "a\nb", ["died"]])
def test_an_incident_that_is_none_is_not_written(coordinator, tmp_path, what):
    """Later messages of other members failed on it, and so did the line about all incidents at the end."""
    hello = {"kind": "hello", "token": (tmp_path / "token").read_text(), "member": "a", "pid": os.getpid()}
    incident = {"kind": "incident", **(what if isinstance(what, dict) else {"what": what})}
    with socket.create_connection(parse_address((tmp_path / "address").read_text())) as link:
        for message in (hello, WAITING, incident):
            link.sendall(encode(message))
            for _ in range(5):
                coordinator.turn(0.01)
    coordinator.recoveries.knows("a", 1)
    kinds = [line.get("what") for line in coordinator.journal.incidents()]
    assert kinds[0] == "generation"
    assert all(isinstance(kind, str) and kind.isprintable() for kind in kinds)
    assert all(isinstance(line.get("generation", 1), int) for line in coordinator.journal.incidents())
    assert summary_of(coordinator.journal.incidents()) is not None


def test_a_flood_of_strangers_leaves_no_trace_in_memory(coordinator):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(200):
        assert stranger(coordinator, b"\xff" * 4 + random.Random(seed).randbytes(60_000))
    assert coordinator.refused == 200
    assert not coordinator._strangers
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_a_member_that_would_send_its_data_another_way_is_refused(coordinator, tmp_path):
    hello = {"kind": "hello", "token": (tmp_path / "token").read_text(), "member": "x", "pid": 1, "rule": "tcp"}
    assert stranger(coordinator, encode(hello))
    assert coordinator.refused == 1


DATA = "30 steps of 64 of 6000 samples in the order of seed 0"


@pytest.mark.parametrize(
    ("about", "why"),
    [
        (
            {"data": DATA.replace("64", "32")},
            "it would train 30 steps of 32 of .*, and the others train 30 steps of 64",
        ),
        ({"data": DATA, "shards": 4}, "cuts a global batch into 4 shards, in a job of 8"),
        ({"data": DATA, "shards": 8, "rule": "tcp"}, "travels over tcp, in a job of shm"),
    ],
    ids=["data", "shards", "rule"],
)
def test_a_worker_that_does_not_fit_the_job_is_told_so(coordinator, tmp_path, about, why):
    """It would have trained other samples, or waited ten minutes without a word."""
    first = Client(tmp_path, "a", {"shards": 8})
    first.describe(DATA)
    first.report(WAITING)
    limit = time.monotonic() + 30
    while first.group is None and time.monotonic() < limit:
        coordinator.turn(0.01)
        first.poll(0.01)
    joins = Client(tmp_path, "b", about)
    joins.report(WAITING)
    coordinator.turn(0.05)
    coordinator.turn(0.05)
    with pytest.raises(WrongCommand, match=why):
        joins.wait_group(0, 2.0)
    assert list(coordinator._links) == ["a"]
    same_data = Client(tmp_path, "c", {"data": DATA, "shards": 8})
    same_data.report(WAITING)
    coordinator.turn(0.05)
    coordinator.turn(0.05)
    assert set(coordinator._links) == {"a", "c"}
    for client in (first, joins, same_data):
        client._drop()


def test_a_stranger_is_not_told_why_it_was_refused(coordinator, tmp_path):
    with socket.create_connection(parse_address((tmp_path / "address").read_text())) as link:
        link.sendall(encode({"kind": "hello", "token": "wrong", "member": "x", "pid": 1}))
        coordinator.turn(0.05)
        coordinator.turn(0.05)
        assert link.recv(100) == b""


def test_the_process_of_another_host_is_not_looked_for_here(coordinator, tmp_path):
    client = Client(tmp_path, "0-1-1", {"host": "another", "place": {"address": "192.0.2.1", "port": 1}})
    client.report(WAITING)
    limit = time.monotonic() + 30
    while client.group is None and time.monotonic() < limit:
        coordinator.turn(0.01)
        client.poll(0.01)
    assert client.places == ({"address": "192.0.2.1", "port": 1, "host": "?", "pid": "?"},)
    assert coordinator.journal.pid_of("0-1-1") == 0
    client._drop()
    coordinator.turn(0.05)
    assert coordinator._registry.form() is None  # it may still be at work, for all that is known here
    replacement = Client(tmp_path, "0-2-2", {"host": "another"})
    replacement.report(WAITING)
    while replacement.group is None and time.monotonic() < limit:
        coordinator.turn(0.01)
        replacement.poll(0.01)
    assert replacement.group.members == ("0-2-2",)  # the launcher starts a slot again when its process has ended
    replacement._drop()


@pytest.mark.parametrize("host", [{}, {"host": "another"}])
def test_a_silent_member_is_an_incident_on_every_host(tmp_path, host):
    made, (watching, frozen) = formed(tmp_path, ["a", "b"], about=host)
    report = {**WAITING, "generation": 1, "holds": True, "suspects": ["b"], "silence": 2.5}
    watching.report(report)
    assert not turned(made, 0.2)
    incidents = [line for line in made.journal.incidents() if line["what"] == "silent"]
    assert [(line["member"], line["by"], line["silence"]) for line in incidents] == [("b", "a", 2.5)]
    made.close()
    for client in (watching, frozen):
        client._drop()


def test_a_silent_coordinator_is_asked_and_then_left(coordinator, tmp_path):
    client = Client(tmp_path, "a")
    client.report({**WAITING, "generation": 3})
    coordinator.turn(0.05)
    first = client._channel
    assert client.wait_group(5, DEAF + 1.5) is None
    assert client._channel is not first  # it has connected anew, because nobody answered
    assert client.lacks
    client._drop()


def test_a_member_with_the_token_gets_a_generation(coordinator, tmp_path):
    client = Client(tmp_path, "a")
    client.report({"kind": "report", "generation": 0, "committed": 0, "ready": False, "suspects": [], "holds": False})
    limit = time.monotonic() + 30
    while client.group is None and time.monotonic() < limit:
        coordinator.turn(0.01)
        client.poll(0.01)
    assert client.group.members == ("a",)
    assert coordinator.journal.last() == client.group
    client.close(finished=True)
    coordinator.turn(0.1)
    assert coordinator.ended


def test_a_report_of_an_old_generation_is_noted_and_does_not_decide(coordinator, tmp_path):
    test_members = {}
    for name, generation in (("a", 0), ("old", 0)):
        test_members[name] = client = Client(tmp_path, name)
        client.report(
            {"kind": "report", "generation": generation, "committed": 0, "ready": False, "suspects": [], "holds": False}
        )
        for _ in range(20):
            coordinator.turn(0.005)
    coordinator._registry.group = coordinator._registry.group.__class__(5, ("a",), 9)
    stale = {"kind": "report", "generation": 4, "committed": 12, "ready": True, "suspects": ["a"], "holds": True}
    test_members["old"].report(stale)
    for _ in range(20):
        coordinator.turn(0.005)
    assert [line["what"] for line in coordinator.journal.incidents()].count("fenced") == 1
    assert coordinator._registry.group.generation == 5
    for client in test_members.values():
        client._drop()


def test_an_evicted_member_that_returns_when_all_steps_are_made_ends(coordinator, tmp_path):
    """It waited ten minutes for a group, and the coordinator and the launcher waited for it."""
    clients = {name: Client(tmp_path, name) for name in ("a", "old")}
    clients["a"].report(WAITING)
    clients["old"].say({"kind": "ping"})
    limit = time.monotonic() + 30
    while (clients["a"].group is None or "old" not in coordinator._links) and time.monotonic() < limit:
        coordinator.turn(0.01)
        clients["a"].poll(0.01)
    coordinator._registry.group = coordinator._registry.group.__class__(5, ("a",), 9)
    clients["a"].close(finished=True)
    for _ in range(5):
        coordinator.turn(0.01)
    assert not coordinator.ended  # "old" is connected
    clients["old"].report({**WAITING, "generation": 4, "committed": 8, "suspects": ["a"], "holds": True})
    coordinator.turn(0.1)
    with pytest.raises(SystemExit) as ended:
        clients["old"].wait_group(4, 2.0)
    assert not ended.value.code
    clients["old"]._drop()
    coordinator.turn(0.1)
    assert coordinator.ended


def formed(folder, names, start=None, about=None):
    """Return a coordinator with a first group of these members, and their clients."""
    made = Coordinator(folder, Registry(start=start or len(names)))
    clients = [Client(folder, name, about) for name in names]
    for client in clients:
        client.report({**WAITING, "holds": True})
    limit = time.monotonic() + 30
    while not all(client.group for client in clients) and time.monotonic() < limit:
        made.turn(0.01)
        for client in clients:
            client.poll(0.001)
    return made, clients


def turned(made, seconds=5.0):
    """Let a coordinator run for some seconds, or until it has ended; return whether it has."""
    limit = time.monotonic() + seconds
    while not made.ended and time.monotonic() < limit:
        made.turn(0.01)
    return made.ended


def ask_status(made, folder):
    with socket.create_connection(parse_address((folder / "address").read_text())) as link:
        link.sendall(encode({"kind": "status", "token": (folder / "token").read_text()}))
        for _ in range(20):
            made.turn(0.01)
        return Inbox().feed(link.recv(1 << 16))[0]


def test_a_restarted_coordinator_knows_with_how_many_workers_the_job_began(tmp_path):
    """The global batch of a worker that joins is its batch times this number: with another one, samples repeat."""
    made, clients = formed(tmp_path, ["0-1-1", "1-2-2"])
    before = ask_status(made, tmp_path)["start"]
    made.close()
    again = Coordinator(tmp_path, Registry(start=2))
    assert (before, ask_status(again, tmp_path)["start"]) == (2, 2)
    again.close()
    for client in clients:
        client._drop()


@pytest.mark.parametrize("finished", [True, False])
def test_a_restarted_coordinator_whose_members_have_all_ended_ends(tmp_path, finished):
    """The launcher waits for it: goodbyes that came while it was down are lost."""
    context = multiprocessing.get_context("fork")
    ended = context.Process(target=time.sleep, args=(30,))
    ended.start()
    made, clients = formed(tmp_path, ["0-1-1"])
    made.journal.begin(Group(2, ("0-1-1",), 3), {"0-1-1": ended.pid})
    made.close()
    clients[0]._drop()
    ended.kill()
    ended.join()
    again = Coordinator(tmp_path, Registry(start=1))
    assert not turned(again, 0.5)  # the launcher may start it again
    (tmp_path / f"{ABSENT}-0").touch()
    if finished:
        (tmp_path / FINISHED).touch()
    assert turned(again, 1.0)
    assert again.deserted is not finished
    again.close()


def test_a_group_of_many_members_is_announced(tmp_path):
    """A message of more than 64 KiB ended the coordinator."""
    made, (client,) = formed(tmp_path, ["0-1-1"])
    names = ("0-1-1", *(f"{rank}-{10**6 + rank}-123456" for rank in range(1, 4096)))
    made._registry.group = Group(2, names, 7, (), (1,) * len(names))
    client.report({**WAITING, "generation": 1, "suspects": list(names[1:]), "holds": True})
    limit = time.monotonic() + 30
    while client.group.generation == 1 and time.monotonic() < limit:
        made.turn(0.01)
        client.poll(0.01)
    assert client.group.members == names
    made.close()
    client._drop()


def test_a_member_that_is_cut_off_is_waited_for_although_the_first_workers_have_left(tmp_path):
    made, (first, joined) = formed(tmp_path, ["0-1-1", "9-2-2"], start=2)
    first.close(finished=False, parting=True)
    for number in range(2):
        (tmp_path / f"{ABSENT}-{number}").touch()
    made._links["9-2-2"].pid = 0  # as if it were on another host
    assert not turned(made, 0.1)
    joined._drop()
    assert not turned(made, 0.5)
    made.close()


def test_a_goodbye_reaches_a_coordinator_that_is_being_restarted(tmp_path):
    made, (client,) = formed(tmp_path, ["a"])
    made.close()
    client.poll(0.01)
    closing = threading.Thread(target=client.close, kwargs={"finished": True})
    closing.start()
    time.sleep(0.3)
    again = Coordinator(tmp_path, Registry(start=1))
    assert turned(again)
    assert again._registry.finished
    closing.join()
    again.close()


def test_the_first_goodbye_after_a_restart_does_not_end_a_job_whose_other_member_is_still_to_connect(tmp_path):
    made, (first, second) = formed(tmp_path, ["a", "b"])
    made.close()
    again = Coordinator(tmp_path, Registry(start=2))
    first.poll(0.01)
    first.close(finished=False, parting=True)
    assert not turned(again, 0.3)
    assert not again.deserted
    second.poll(0.01)
    second.poll(0.01)
    closing = threading.Thread(target=second.close, kwargs={"finished": True})
    closing.start()
    assert turned(again)
    closing.join()
    again.close()


def test_the_token_is_readable_by_the_user_only(coordinator, tmp_path):
    assert os.stat(tmp_path / "token").st_mode & 0o077 == 0


def test_a_token_whose_writer_was_killed_is_made_again(tmp_path):
    (tmp_path / "token").touch()
    assert len(make_token(tmp_path)) == 64
    assert make_token(tmp_path) == (tmp_path / "token").read_text()
    assert os.stat(tmp_path / "token").st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize(("shown", "token"), [("", ""), (None, ""), ("\ud800", "a"), ("b", "a"), (3, "3")])
def test_an_empty_token_admits_nobody(shown, token):
    assert not same(shown, token)
    assert same("a", "a")


def test_bytes_become_messages_however_they_are_cut():
    text = encode({"kind": "a", "n": 1}) + encode({"kind": "b"})
    for size in (1, 3, 7, len(text)):
        inbox, messages = Inbox(), []
        for start in range(0, len(text), size):
            messages += inbox.feed(text[start : start + size])
        assert [message["kind"] for message in messages] == ["a", "b"]


@pytest.mark.parametrize("body", [b"[]", b"{}", b"nonsense", b'{"kind": 3}', b"[" * 30000])
def test_a_frame_that_is_no_message_is_refused(body):
    with pytest.raises(BrokenFrame):
        Inbox().feed(len(body).to_bytes(4, "little") + body)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:99999", "host:x", f"{'a' * 70}:1", "a..b:1", "a\0b:1"]
)
def test_a_wrong_address_is_refused(text):
    with pytest.raises(WrongCommand, match="address"):
        parse_address(text)


WAITING = {"kind": "report", "generation": 0, "committed": 0, "ready": False, "suspects": [], "holds": False}


def test_a_member_without_a_group_says_what_it_waited_for(tmp_path):
    made, client = Coordinator(tmp_path, Registry(start=3)), Client(tmp_path, "a")
    client.report(WAITING)
    limit = time.monotonic() + 30
    while not client.waits_for and time.monotonic() < limit:
        made.turn(0.01)
        client.poll(0.01)
    with pytest.raises(PeerLost, match="a got no group within 0 s: 1 of 3 workers are here; the first group waits"):
        client.next_group(0, 0.0)
    client._drop()
    made.close()


def test_a_member_of_a_job_whose_folder_is_gone_ends(tmp_path):
    folder = tmp_path / "job"
    Coordinator(folder, Registry(start=3)).close()
    client = Client(folder, "a")
    shutil.rmtree(folder)
    with pytest.raises(PeerLost, match="the launcher of the job has ended"):
        client.report(WAITING)

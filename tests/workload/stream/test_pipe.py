"""The ZeroMQ pipe: batches come through; silence, strangers and garbage have clear messages."""

import socket
import threading

import pytest
import torch
import zmq
from zmq.utils.garbage import gc

from paceline.errors import WorkloadError, WrongCommand
from paceline.types import View
from paceline.workload.sources import MENU
from paceline.workload.stream import pipe
from paceline.workload.stream.feed import StreamFeed
from paceline.workload.stream.layout import fields_of, write
from paceline.workload.stream.pipe import TOKEN, Pull, Push, seal, stays_inside, unseal

ANY = "tcp://127.0.0.1:*"
BATCH = (torch.arange(24, dtype=torch.float32).view(4, 6), torch.arange(4))
TEXT = write(fields_of(BATCH))
CONTENTS = [tensor.numpy().tobytes() for tensor in BATCH]
WHOLE_SEAL = seal("token", 7, TEXT, CONTENTS)


@pytest.fixture
def closing():
    """Close what a test opened, the last one first."""
    opened = []
    yield lambda thing: opened.append(thing) or thing
    for thing in reversed(opened):
        thing.close()
    gc.stop()  # a thread that pyzmq keeps for buffers that were sent in place


def test_batches_arrive_as_they_were_sent_and_in_order(closing):
    push = closing(Push(ANY, "token"))
    pull = closing(Pull(push.address, "token", 60))
    sender = threading.Thread(target=lambda: [push.send((BATCH[0] + k, BATCH[1]), "it") for k in range(20)])
    sender.start()
    for k in range(20):
        images, labels = pull.take()
        assert torch.equal(images, BATCH[0] + k)
        assert torch.equal(labels, BATCH[1])
    sender.join()


def test_a_full_pipe_stops_the_producer(closing):
    push = closing(Push(ANY, "token"))
    pull = closing(Pull(push.address, "token", 60))
    big, sent = (torch.zeros(1 << 20),), []
    sender = threading.Thread(target=lambda: [(push.send(big, "it"), sent.append(k)) for k in range(200)])
    sender.start()
    pull.take()
    assert len(sent) < 100  # 400 MB do not fit into any buffer on the way
    for _ in range(199):
        pull.take()
    sender.join()


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([b"hello"], "a message that is no batch"),
        ([seal("token", 1, TEXT), TEXT], "a message that is no batch"),
        ([b"x" * 48, TEXT, *CONTENTS], "a message that is no batch"),
        ([seal("wrong", 1, TEXT), TEXT, *CONTENTS], "a message with another seal than that of PACELINE_DATA_TOKEN"),
        ([seal("token", 1, TEXT), TEXT.replace(b"4, 6", b"6, 4"), *CONTENTS], "another seal"),
        ([seal("token", 1, TEXT, CONTENTS), TEXT, CONTENTS[0][:-1] + b"x", CONTENTS[1]], "another seal"),
        ([seal("token", 1, TEXT, CONTENTS), TEXT, CONTENTS[1], CONTENTS[0]], "another seal"),
        ([seal("token", 1, TEXT), TEXT, CONTENTS[0], CONTENTS[1][:-1]], "tensors of other sizes"),
        ([seal("token", 1, TEXT), TEXT, CONTENTS[0]], "tensors of other sizes"),
        ([seal("token", 1, b"{}"), b"{}", *CONTENTS], "a header that is no JSON"),
    ],
)
def test_garbage_on_the_pipe_is_named(parts, why, closing):
    with pytest.raises(ValueError, match=why):
        unseal("token", [memoryview(part) for part in parts], inside=True)
    context = zmq.Context()
    try:
        sender = context.socket(zmq.PUSH)
        sender.setsockopt(zmq.LINGER, 0)
        port = sender.bind_to_random_port("tcp://127.0.0.1")
        pull = closing(Pull(f"tcp://127.0.0.1:{port}", "token", 60))
        sender.send_multipart(parts)
        with pytest.raises(WorkloadError, match=rf"source zmq\(tcp://127.0.0.1:{port}\): it sent .*{why}"):
            pull.take()
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("again", [3, 1, 0])
def test_a_batch_that_comes_again_is_refused(again, closing):
    """So does one of a producer that was killed and started anew: it begins with the first batch."""
    push = closing(Push(ANY, "token"))
    pull = closing(Pull(push.address, "token", 60))
    for push._number in (-1, 2):  # another worker has had those between
        push.send(BATCH, "it")
        pull.take()
    push._number = again - 1
    push.send(BATCH, "it")
    with pytest.raises(WorkloadError, match=f"it sent batch {again} after batch 3: batches come again"):
        pull.take()


@pytest.mark.parametrize(("head", "inside"), [(seal("token", 7, TEXT), True), (WHOLE_SEAL, True), (WHOLE_SEAL, False)])
def test_what_was_sealed_is_accepted(head, inside):
    parts = [memoryview(bytearray(part)) for part in (head, TEXT, *CONTENTS)]
    number, (images, labels) = unseal("token", parts, inside=inside)
    assert number == 7
    assert torch.equal(images, BATCH[0])
    assert torch.equal(labels, BATCH[1])


def test_between_hosts_the_seal_covers_the_tensors(closing, monkeypatch):
    """A message sealed for this host alone is refused as soon as another host could have changed it."""
    monkeypatch.setattr(pipe, "stays_inside", lambda address: False)
    push = closing(Push(ANY, "token"))
    pull = closing(Pull(push.address, "token", 60))
    push.send(BATCH, "it")
    assert torch.equal(pull.take()[0], BATCH[0])
    push._inside = True
    push.send(BATCH, "it")
    with pytest.raises(WorkloadError, match="leaves out its tensors, which between hosts anybody could change"):
        pull.take()


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("ipc:///x/y", True),
        ("tcp://127.0.0.1:5", True),
        ("tcp://[::1]:5", True),
        ("tcp://localhost:5", True),
        ("tcp://0.0.0.0:5", False),
        ("tcp://*:5", False),
        ("tcp://10.1.2.3:5", False),
        ("tcp://localhost.evil.org:5", False),
    ],
)
def test_only_loopback_and_ipc_stay_inside_a_host(address, inside):
    assert stays_inside(address) is inside


def test_a_producer_that_ends_is_named(closing, monkeypatch):
    monkeypatch.setattr(pipe, "GRACE", 0.3)
    push = Push(ANY, "token")
    pull = closing(Pull(push.address, "token", 60))
    push.send(BATCH, "it")
    pull.take()
    push.close()
    with pytest.raises(WorkloadError, match=r"the producer has ended after batch 1.*paceline data produce"):
        pull.take()


def test_nobody_at_the_address_is_named(closing):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(WorkloadError, match=r"no batch came for 0.5 s, nobody answers there"):
        closing(Pull(f"tcp://127.0.0.1:{port}", "token", 0.5)).take()


def test_a_server_that_does_not_speak_zeromq_is_named(closing, monkeypatch):
    monkeypatch.setattr(pipe, "GRACE", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            line, _ = server.accept()
            line.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(WorkloadError, match="does not speak ZeroMQ"):
            closing(Pull(f"tcp://127.0.0.1:{server.getsockname()[1]}", "token", 60)).take()
        thread.join()


@pytest.mark.parametrize("address", ["127.0.0.1:5555", "http://x:1", "tcp://x", "inproc://a"])
def test_an_address_of_another_kind_is_refused(address):
    with pytest.raises(WrongCommand, match=r"no ZeroMQ address.*tcp://127.0.0.1:5555"):
        MENU.make(f"zmq({address})")


def test_an_address_that_is_taken_is_refused(closing):
    push = closing(Push(ANY, "token"))
    with pytest.raises(WrongCommand, match="Address already in use"):
        Push(push.address, "token")


def test_the_source_needs_the_token_of_its_producer(closing, monkeypatch):
    push = closing(Push(ANY, "secret-of-both"))
    source = MENU.make(f"zmq({push.address})")
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(WrongCommand, match="PACELINE_DATA_TOKEN is not set"):
        source.open(View(0, 1), {})
    monkeypatch.setenv(TOKEN, "secret-of-both")
    feed = closing(StreamFeed(source.open(View(0, 1), {}), "it", 4, parts=1, accumulate=2, place=lambda batch: batch))
    for _ in range(2):
        push.send(BATCH, "it")
        next(feed)
    assert (feed.count, feed.total, feed.micro, feed.cursor.step) == (4, 4, 0, 1)
    push.send((BATCH[0][:3], BATCH[1][:3]), "it")
    with pytest.raises(WorkloadError, match=r"sends batches of 3: this run takes 4 .*--batch-size 3"):
        next(feed)
    for refused in (feed.state, lambda: feed.restore({})):
        with pytest.raises(WrongCommand, match="no order that could be resumed"):
            refused()

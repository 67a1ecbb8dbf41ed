"""State as bytes without pickle: written and read back, damaged, cut, and on a full disk."""

import errno
import io
import json
import os
import random
import tracemalloc
import zlib

import pytest
import torch

from paceline.errors import DamagedFile, NoRoom, PacelineError, WrongCommand
from paceline.files.snapshot import MAGIC, Snapshot, fill, room_for

STATE = {
    "model": {
        "w": torch.arange(6.0).view(2, 3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 4),
    },
    "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp": torch.zeros(2, dtype=torch.float64)}, 7: {}}},
    "numbers": [1, -2, 0.1, float("inf"), True, None, "text\u00e9", b"\x00\xff", (1, (2, [3]))],
    "flags": torch.tensor([True, False]),
    "random": torch.get_rng_state(),
}


def packed(state=STATE):
    stream = io.BytesIO()
    assert Snapshot(state).write(stream) == len(stream.getvalue())
    return stream.getvalue()


def unpacked(content):
    return Snapshot.read(io.BytesIO(content), len(content)).state


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_a_state_comes_back_as_it_was():
    assert same(unpacked(packed()), STATE)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}
    assert same(unpacked(packed(state)), state)
    optimizer.load_state_dict(unpacked(packed(state))["optimizer"])


def test_two_snapshots_can_follow_each_other_in_a_stream():
    stream = io.BytesIO(packed({"a": torch.ones(3)}) + packed({"b": 2}))
    assert same(Snapshot.read(stream, 1000).state, {"a": torch.ones(3)})
    assert Snapshot.read(stream, 1000).state == {"b": 2}


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.zeros(2).to_sparse(), lambda: 1])
def test_what_would_need_code_to_read_is_refused(value):
    with pytest.raises((WrongCommand, RuntimeError)):
        packed({"x": value})


def test_every_flipped_bit_and_every_cut_is_noticed():
    content = packed({"w": torch.arange(4.0), "n": [1, 2.5, "x"]})
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(DamagedFile):
            unpacked(bytes(damaged))
        with pytest.raises(DamagedFile, match=r"more bytes were due|more than there are|announces"):
            unpacked(content[:place])


def test_random_headers_raise_nothing_else():
    dice = random.Random(5)
    for _ in range(300):
        content = {"format": 1, "tree": _noise(dice, 3), "tensors": _noise(dice, 2)}
        header = json.dumps(content).encode()
        blob = MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little") + header
        try:
            unpacked(blob + b"\0" * 64)
        except DamagedFile:
            pass


def _noise(dice, depth):
    kinds = [None, 3, -1, 1 << 70, "x", 0.5, True, [], {}, {"t": 0}, {"t": "x"}, {"l": 3}, {"d": [[{"l": []}, 1]]}]
    if not depth or dice.random() < 0.3:
        return dice.choice(kinds)
    if dice.random() < 0.5:
        return [_noise(dice, depth - 1) for _ in range(dice.randrange(4))]
    return {dice.choice("ltudfbx"): _noise(dice, depth - 1)}


def test_a_damaged_size_allocates_nothing():
    header = json.dumps({"format": 1, "tree": {"t": 0}, "tensors": [["float32", [1 << 30], 0]]}).encode()
    head = MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little") + header
    tracemalloc.start()
    with pytest.raises(DamagedFile, match="more than there are"):
        unpacked(head + b"\0" * 100)
    with pytest.raises(DamagedFile, match="it ends there"):  # a stream that may be long, and is not
        Snapshot.read(io.BytesIO(head + b"\0" * 100), 1 << 40)
    with pytest.raises(DamagedFile, match="announces a header of"):
        unpacked(MAGIC + (1 << 62).to_bytes(8, "little") + b"\0" * 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("shape", [[0, 1 << 47, 1 << 47], [1 << 47] * 40 + [0], [0, -1], [1 << 48]])
def test_a_shape_that_no_tensor_has_is_refused(shape):
    header = json.dumps({"format": 1, "tree": {"t": 0}, "tensors": [["float32", shape, 0]]}).encode()
    head = MAGIC + len(header).to_bytes(8, "little") + zlib.crc32(header).to_bytes(8, "little") + header
    with pytest.raises(DamagedFile, match="a tensor of float32"):
        unpacked(head + b"\0" * 100)


def test_a_draft_of_a_killed_process_with_the_same_pid_does_not_stop_the_next_one(tmp_path):
    (tmp_path / f".a.snapshot.{os.getpid()}.draft").write_bytes(b"half of")
    Snapshot({"n": 1}).save(tmp_path / "a.snapshot")
    assert Snapshot.load(tmp_path / "a.snapshot").state == {"n": 1}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "a.snapshot"
    Snapshot({"n": 1}).save(path)
    assert Snapshot.load(path).state == {"n": 1}

    def full(number):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NoRoom, match=r"a.snapshot was not written: No space left on device"):
            Snapshot({"n": 2}).save(path)
    assert Snapshot.load(path).state == {"n": 1}
    assert [file.name for file in path.parent.iterdir()] == ["a.snapshot"]
    Snapshot({"n": 3}).save(path)
    assert Snapshot.load(path).state == {"n": 3}


def test_a_real_full_disk_is_named():
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb") as stream:
        Snapshot(STATE).write(stream)


def test_a_file_that_goes_on_or_is_none_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(packed() + b"\0")
    with pytest.raises(DamagedFile, match="goes on after the end"):
        Snapshot.load(path)
    path.write_bytes(b"hello, this is not one of them")
    with pytest.raises(DamagedFile, match="does not begin like a snapshot"):
        Snapshot.load(path)
    with pytest.raises(PacelineError, match="No such file"):
        Snapshot.load(tmp_path / "y")


# the same in memory that two processes share ---------------------------------------------------------------


def in_memory(state):
    header, tensors = Snapshot(state).outline()
    memory = torch.full((room_for(tensors),), 7, dtype=torch.uint8)
    fill(memory, tensors)
    return header, memory


def test_a_state_is_read_from_memory_that_another_process_has_filled():
    state = {
        "a": torch.arange(5, dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "turned": torch.arange(6.0).reshape(2, 3).t(),
        3: [torch.tensor(True), (1, "two", float("inf"), b"x")],
        "long": torch.arange(1 << 40, (1 << 40) + 9),
    }
    header, memory = in_memory(state)
    found = Snapshot.unpacked(header, memory).state
    assert torch.equal(found["a"], state["a"])
    assert found["none"].shape == (0, 3)
    assert torch.equal(found["turned"], state["turned"])
    assert torch.equal(found["long"], state["long"])
    assert found[3] == [torch.tensor(True), (1, "two", float("inf"), b"x")]
    assert in_memory({"no": "tensors"})[1].numel() == 0
    assert Snapshot.unpacked(*in_memory({"no": "tensors"})).state == {"no": "tensors"}


def test_what_is_read_from_memory_does_not_change_with_it():
    header, memory = in_memory({"a": torch.ones(4)})
    found = Snapshot.unpacked(header, memory).state
    memory.zero_()
    assert found["a"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"no json", "cannot be read"),
        (b'{"format": 2, "tree": null, "tensors": []}', "format 2"),
        (b'{"format": 1, "tree": {"t": 1}, "tensors": []}', "cannot be read"),
        (b'{"format": 1, "tree": {"t": 0}, "tensors": [["float32", [65], 0]]}', "announces 260 bytes"),
        (b'{"format": 1, "tree": {"t": 0}, "tensors": [["float33", [1], 0]]}', "a tensor of float33"),
    ],
)
def test_a_damaged_header_of_memory_is_refused(header, why):
    with pytest.raises(DamagedFile, match=why):
        Snapshot.unpacked(header, torch.zeros(256, dtype=torch.uint8), "the state")

import io
import os

import pytest

from paceline.cluster import output
from paceline.cluster.output import Lines, Outlet, Output


@pytest.fixture
def pipe():
    """Return a pipe and the blocks that Lines reads from it."""
    read, write = os.pipe()
    blocks = []
    lines = Lines(os.fdopen(read, "rb", buffering=0), blocks.append)
    with os.fdopen(write, "wb", buffering=0) as writer:
        yield lines, writer, blocks
    lines.close()


def test_only_whole_lines_are_passed_on(pipe):
    lines, writer, blocks = pipe
    for piece in (b"one\ntw", b"o", b"\n\nthree"):
        writer.write(piece)
        lines.read()
    assert blocks == [b"one\n", b"two\n\n"]


def test_the_last_line_needs_no_newline(pipe):
    lines, writer, blocks = pipe
    writer.write(b"one\ntwo")
    writer.close()
    lines.drain()
    assert b"".join(blocks) == b"one\ntwo\n"
    assert not lines.open


def test_empty_lines_are_lines(pipe):
    lines, writer, blocks = pipe
    writer.write(b"\n")
    lines.read()
    writer.write(b"\n")
    lines.read()
    assert blocks == [b"\n", b"\n"]


def test_reading_never_waits(pipe):
    lines, _, blocks = pipe
    assert lines.read() == 0
    assert blocks == []


def test_a_drain_ends_though_somebody_still_holds_the_pipe(pipe):
    lines, writer, blocks = pipe
    writer.write(b"last words")
    lines.drain()
    assert blocks == [b"last words\n"]


def test_a_line_without_end_is_passed_on_in_parts(pipe, monkeypatch):
    monkeypatch.setattr(output, "LONGEST", 10)
    lines, writer, blocks = pipe
    for _ in range(3):
        writer.write(b"12345678")
        lines.read()
    lines.drain()
    assert b"".join(blocks).replace(b"\n", b"") == b"12345678" * 3
    assert len(blocks) > 1


def printed(tmp_path, block, **settings):
    out, err = io.StringIO(), io.StringIO()
    lines = Output(tmp_path, out, err, **settings)
    lines.open(3)
    lines.put(3, "stdout", block)
    lines.close()
    return out.getvalue(), (tmp_path / "rank-3.log").read_bytes(), lines


def test_each_line_carries_its_rank(tmp_path):
    assert printed(tmp_path, b"a\n\nb\n", prefix=True)[:2] == ("[3] a\n[3] \n[3] b\n", b"a\n\nb\n")
    assert printed(tmp_path, b"a\nb\n", prefix=False)[:2] == ("a\nb\n", b"a\nb\n")


def test_on_line_replaces_the_terminal_but_not_the_log(tmp_path):
    got = []
    shown, log, _ = printed(tmp_path, b"a\n\xff\n", prefix=True, on_line=lambda *line: got.append(line))
    assert got == [(3, "stdout", "a"), (3, "stdout", "\ufffd")]
    assert (shown, log) == ("", b"a\n\xff\n")


def test_a_problem_is_kept_and_later_lines_are_dropped(tmp_path):
    calls = []

    def fail(*line):
        calls.append(line)
        raise KeyError("mine")

    _, _, lines = printed(tmp_path, b"a\nb\n", prefix=True, on_line=fail)
    lines.put(3, "stdout", b"c\n")
    assert isinstance(lines.problem, KeyError)
    assert len(calls) == 1


def test_a_full_disk_is_said_in_words(tmp_path):
    lines = Output(tmp_path, None, None, prefix=True)
    (tmp_path / "rank-0.log").symlink_to("/dev/full")
    lines.open(0)
    lines.put(0, "stdout", b"a\n")
    assert "the disk is full" in str(lines.problem)
    lines.close()


def test_an_outlet_writes_only_what_fits(tmp_path):
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "w") as writer:
        outlet = Outlet(writer)
        outlet.put(b"x" * 200_000)
        outlet.pump()
        assert 0 < outlet.waiting < 200_000
        taken = len(os.read(reader.fileno(), 100_000))
        outlet.pump()
        assert outlet.waiting <= 200_000 - taken


def test_a_reader_that_left_is_not_missed():
    read, write = os.pipe()
    with os.fdopen(write, "w") as writer:
        os.close(read)
        outlet = Outlet(writer)
        outlet.put(b"x\n")
        outlet.pump()
        assert outlet.waiting == 0
        print("a later print of the launcher does not fail", file=writer, flush=True)

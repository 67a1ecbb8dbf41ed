import os
import re

import pytest

from paceline.errors import DamagedFile, WrongCommand
from paceline.files import read as files
from paceline.measure.record.experiment import read_experiment
from paceline.race.suite import read_suite
from paceline.strategy.topologies import _edges as edges
from paceline.workload import profile
from paceline.workload.sources._idxfile import look

READERS = {
    "graph": edges.read,
    "profile": profile.read,
    "experiment": read_experiment,
    "suite": lambda path: read_suite(str(path)),
    "idx": lambda path: look(path, 3),
}


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    return tmp_path / "pipe.toml"


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", READERS)
def test_a_pipe_and_a_device_are_refused_without_reading_them(name, pipe):
    for path, why in ((pipe, "it is a pipe"), ("/dev/zero", "it is a device"), (pipe.parent, "it is a directory")):
        with pytest.raises(WrongCommand, match=why):
            READERS[name](type(pipe)(path))


@pytest.mark.parametrize("name", ["graph", "profile", "experiment", "suite"])
def test_a_huge_file_is_refused_by_its_size(name, tmp_path):
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room
    with pytest.raises(WrongCommand, match=r"it is larger than [\d,]+ bytes"):
        READERS[name](path)


def test_the_images_of_an_idx_file_fit_into_memory(tmp_path):
    path = tmp_path / "images"
    with path.open("wb") as file:
        file.write(bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (1 << 20, 64, 64)))
        file.truncate(1 << 33)
    with pytest.raises(DamagedFile, match="at most 2,147,483,648 are read"):
        look(path, 3)


def test_a_file_that_grows_is_read_up_to_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "text"
    path.write_bytes(b"x" * 100)
    assert files.read_bytes(path, 100) == b"x" * 100
    with pytest.raises(WrongCommand, match="larger than 99 bytes"):
        files.read_bytes(path, 99)
    monkeypatch.setattr(files.os, "read", lambda number, count: b"x" * 15)
    with pytest.raises(WrongCommand, match=re.escape("larger than 1,000 bytes")):
        files.read_bytes(path, 1_000)


def test_a_file_of_proc_says_no_size_and_is_read():
    assert files.read_text("/proc/self/status").startswith("Name:")


def test_what_is_no_path_and_no_text_is_named(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(WrongCommand, match="it is not text"):
        files.read_text(tmp_path / "bytes")
    for path in ("a\0b", "a" * 5_000):
        with pytest.raises(WrongCommand, match="cannot be read"):
            files.read_text(path)

import os
import random
import resource
import sqlite3

import pytest

from paceline.elastic.journal import Journal
from paceline.elastic.protocol import Group
from paceline.errors import NoRoom, WrongCommand


def test_a_journal_gives_back_the_last_generation_and_the_watermark(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    assert journal.last() is None
    journal.begin(Group(1, ("a", "b"), 0))
    journal.mark(1, 17)
    journal.begin(Group(2, ("b", "c"), 18, ("c",)))
    journal.note({"what": "died", "member": "a"})
    journal.close()
    again = Journal(tmp_path / "journal.db")
    assert again.last() == Group(2, ("b", "c"), 18, ("c",))
    assert again.watermark() == 18
    assert again.rollbacks() == []
    assert list(again.incidents()) == [{"what": "died", "member": "a"}]
    again.close()


def test_a_generation_that_starts_earlier_writes_a_rollback(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    journal.begin(Group(1, ("a",), 0))
    journal.mark(1, 40)
    journal.begin(Group(2, ("b",), 32))
    assert journal.rollbacks() == [(2, 40, 32)]
    assert journal.watermark() == 32
    journal.close()


def test_a_generation_is_synced_and_a_watermark_is_not(tmp_path):
    journal = Journal(tmp_path / "journal.db")
    settings = []
    journal._file.set_trace_callback(lambda text: settings.append(text) if "synchronous" in text else None)
    journal.begin(Group(1, ("a",), 0))
    journal.mark(1, 1)
    assert settings == ["pragma synchronous=full", "pragma synchronous=normal"]
    journal.close()


def test_a_file_that_is_no_journal_is_refused(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"something else, long enough to be looked at" * 40)
    with pytest.raises(WrongCommand, match="journal"):
        Journal(tmp_path / "journal.db")


def test_a_journal_on_a_full_disk_is_not_called_damaged(tmp_path):
    """The advice for a damaged one is to remove it, and with it the state of the job."""
    journal = Journal(tmp_path / "journal.db")
    journal.begin(Group(1, ("a",), 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "journal.db-wal").stat().st_size, hard))
    try:
        with pytest.raises(NoRoom, match="free some room") as problem:
            journal.mark(1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "remove" not in str(problem.value)
    journal.mark(1, 2)
    assert journal.watermark() == 2
    journal.close()


def test_sqlite_is_new_enough():
    assert sqlite3.sqlite_version_info >= (3, 7, 0)


def seen(path):
    """Return everything of a journal that must be there or absent together."""
    journal = Journal(path)
    try:
        group = journal.last()
        return group, journal.rollbacks(), journal.watermark(), journal.pid_of("new"), journal.pid_of("a")
    finally:
        journal.close()


@pytest.mark.parametrize("tail", ["cut", "zeros", "noise"])
def test_a_torn_last_entry_is_there_as_a_whole_or_absent(tmp_path, tail):
    source = Journal(tmp_path / "journal.db")
    source.begin(Group(1, ("a", "b"), 0, (), (4, 4)), {"a": os.getpid()})
    source.mark(1, 9)
    log = tmp_path / "journal.db-wal"
    before = log.stat().st_size
    source.begin(Group(2, ("new",), 5, (), (8,)), {"new": os.getpid()})
    whole, data = log.read_bytes(), (tmp_path / "journal.db").read_bytes()
    source.close()
    first = (Group(1, ("a", "b"), 0, (), (4, 4)), [], 9, 0, os.getpid())
    second = (Group(2, ("new",), 5, (), (8,)), [(2, 9, 5)], 5, os.getpid(), os.getpid())
    dice, found = random.Random(3), []
    cuts = sorted({before, before + 1, len(whole) - 1, len(whole), *dice.sample(range(before, len(whole)), 40)})
    for number, cut in enumerate(cuts):
        folder = tmp_path / str(number)
        folder.mkdir()
        rest = len(whole) - cut
        torn = {"cut": b"", "zeros": bytes(rest), "noise": dice.randbytes(rest)}[tail]
        (folder / "journal.db").write_bytes(data)
        (folder / "journal.db-wal").write_bytes(whole[:cut] + torn)
        found.append(seen(folder / "journal.db"))
    assert found[0] == first
    assert found[-1] == second
    assert all(one in (first, second) for one in found)
    assert found == sorted(found, key=lambda one: one == second)

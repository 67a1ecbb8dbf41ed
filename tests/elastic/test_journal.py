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
    assert settings == ["pragma synchronous=full", "pragma synchronous=off"]
    journal.close()


def test_a_torn_last_record_is_absent_for_all(tmp_path):
    """The write-ahead log of a killed coordinator is cut in the middle of its last record."""
    path = tmp_path / "journal.db"
    journal = Journal(path)
    journal.begin(Group(1, ("a", "b"), 0))
    before = (tmp_path / "journal.db-wal").stat().st_size
    journal.begin(Group(2, ("a",), 5))
    whole = (tmp_path / "journal.db-wal").read_bytes()
    copy = tmp_path / "copy"
    for size, last in ((len(whole), 2), ((before + len(whole)) // 2, 1)):
        copy.mkdir()
        (copy / "journal.db").write_bytes(path.read_bytes())
        (copy / "journal.db-wal").write_bytes(whole[:size])
        again = Journal(copy / "journal.db")
        assert again.last().generation == last
        again.close()
        for left in copy.iterdir():
            left.unlink()
        copy.rmdir()
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

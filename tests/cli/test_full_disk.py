"""What was measured is printed before it is written: a disk that is full by then does not lose it."""

import errno
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.errors import WorkerFailed
from tests.report.samples import events, record


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A run that is measured without processes, on a disk that fills up meanwhile."""

    def measure(run, on_line=None, **_):
        monkeypatch.setattr(Path, "write_text", refuse)
        return record(), events()

    def refuse(path, text, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("paceline.race.keep.measure", measure)
    monkeypatch.chdir(tmp_path)


def ended(words, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code, capsys.readouterr()


def test_a_full_disk_does_not_lose_the_printed_result(full, capsys):
    code, printed = ended(["run", "--model", "mlp"], capsys)
    assert code == 1
    assert "step    median" in printed.out
    assert printed.out.splitlines()[-1].startswith("Total img/sec on 2 CPU(s): ")
    assert "record:" not in printed.out
    assert "cannot be written: No space left on device\n  try: free some room, or write elsewhere" in printed.err


def test_a_full_disk_does_not_lose_the_result_of_a_rerun(full, tmp_path, capsys):
    kept = record()
    (tmp_path / "old.json").write_text(kept.to_json())
    code, printed = ended(["rerun", "old.json"], capsys)
    assert code == 1
    assert printed.out.splitlines()[-1].startswith("Total img/sec on 2 CPU(s): ")
    assert "No space left on device" in printed.err


def test_a_failure_is_told_also_where_its_record_finds_no_room(full, monkeypatch, capsys):
    def fail(*_, **__):
        raise WorkerFailed("rank 1 died")

    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr("paceline.race.keep.measure", fail)
    code, printed = ended(["run", "--model", "mlp"], capsys)
    assert code == 1
    assert printed.err == "error: rank 1 died\n"


def test_the_total_is_the_last_line_of_a_run_that_was_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("paceline.race.keep.measure", lambda *_, **__: (record(), events()))
    monkeypatch.chdir(tmp_path)
    code, printed = ended(["run", "--model", "mlp", "--trace", "t.json"], capsys)
    assert code == 0
    *_, kept, trace, total = printed.out.splitlines()
    assert kept.startswith("record: ")
    assert trace.startswith("trace: t.json")
    assert total.startswith("Total img/sec on 2 CPU(s): ")

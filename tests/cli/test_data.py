"""paceline data --json: the file is written whole or not at all, and a wrong one is refused before any work."""

import errno
import json
from pathlib import Path

import pytest

from paceline.cli import main
from tests.workload.sources.idxfiles import write_folder


def ended(words, capsys):
    try:
        main([str(word) for word in words])
        code = 0
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


@pytest.fixture
def packed(tmp_path, capsys):
    folder = tmp_path / "packed"
    code, printed = ended(["data", "pack", f"idx({write_folder(tmp_path / 'idx', train=20)})", folder], capsys)
    assert code == 0, printed.err
    return folder


def test_the_result_is_kept(packed, tmp_path, capsys):
    code, _ = ended(["data", "verify", packed, "--json", tmp_path / "a.json"], capsys)
    assert code == 0
    assert json.loads((tmp_path / "a.json").read_text())["damages"] == []


def test_a_full_disk_leaves_the_old_result_whole(packed, tmp_path, monkeypatch, capsys):
    kept = tmp_path / "a.json"
    kept.write_text("old")
    left = Path.write_text

    def half(path, text, **settings):
        left(path, text[: len(text) // 2], **settings)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    code, printed = ended(["data", "verify", packed, "--json", kept], capsys)
    assert code == 1
    assert "a.json cannot be written: No space left on device\n  try: free some room" in printed.err
    assert "sound records" in printed.out
    assert kept.read_text() == "old"
    assert not list(tmp_path.glob(".a.json*"))


def test_a_file_that_cannot_be_written_is_refused_before_any_work(tmp_path, capsys):
    words = ["data", "pack", f"idx({write_folder(tmp_path / 'idx', train=20)})", tmp_path / "packed"]
    code, printed = ended([*words, "--json", tmp_path / "nowhere" / "a.json"], capsys)
    assert code == 2
    assert "there is no folder" in printed.err
    assert not (tmp_path / "packed").exists()

"""paceline doctor: the exit code says whether training can work."""

import json

import pytest

from paceline.cli import main


def code_of(*words):
    with pytest.raises(SystemExit) as end:
        main(["doctor", *words])
    return end.value.code


def test_a_machine_without_torch_is_told_so_with_exit_code_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("paceline.cluster.doctor.installed", lambda package: None)
    assert code_of("--json", str(tmp_path / "d.json")) == 1
    assert "bad   torch         missing. try: pip install torch" in capsys.readouterr().out
    states = {found["what"]: found["state"] for found in json.loads((tmp_path / "d.json").read_text())}
    assert (states["torch"], states["transformers"]) == ("bad", "note")


def test_what_is_missing_and_optional_is_a_note(monkeypatch, capsys):
    monkeypatch.setattr("paceline.cluster.doctor.installed", lambda package: "2.13.0" if package == "torch" else None)
    assert code_of() == 0
    assert "note  transformers  missing: bert_base, bert_large will not work" in capsys.readouterr().out

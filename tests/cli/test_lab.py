"""paceline lab: a command on every host, or a table of the links."""

import contextlib

import pytest

from paceline.cli import main
from paceline.run.run import Run


def test_a_command_is_started_on_every_host(monkeypatch):
    started = []
    monkeypatch.setattr("paceline.race.script.launch", lambda argv, **given: started.append((argv, given)))
    with pytest.raises(SystemExit) as end:
        main(["lab", "--hosts", "2", "--bandwidth", "200mbit", "--", "python", "x.py", "--lr", "1"])
    assert end.value.code == 0
    run = Run(workers=2, lab="lab(hosts=2, bandwidth=200mbit)")
    assert started == [(["python", "x.py", "--lr", "1"], {"run": run, "choices": {}})]


class Links(contextlib.nullcontext):
    """In place of a network, which would need root: the second host gets half of its rate."""

    def __init__(self, lab):
        super().__init__(self)
        self.lab = lab

    def goodput(self, seconds):
        assert seconds == 0.5
        return [self.lab.bytes_per_second, self.lab.bytes_per_second / 2]

    def address(self, host):
        return f"10.0.0.{host}"


def test_without_a_command_links_are_measured(monkeypatch, capsys):
    monkeypatch.setattr("paceline.cluster.lab.network.Network", Links)
    with pytest.raises(SystemExit) as end:
        main(["lab", "--hosts", "2", "--bandwidth", "200mbit", "--seconds", "0.5"])
    assert end.value.code == 0
    head, _, _, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("lab(hosts=2, bandwidth=200mbit): all hosts send to the next one")
    assert [row.split() for row in rows] == [
        ["host", "0", "10.0.0.0", "25.0", "MB/s", "100.0", "%"],
        ["host", "1", "10.0.0.1", "12.5", "MB/s", "50.0", "%"],
    ]

"""`node`: shared memory inside a host and gloo between hosts, in real processes that pretend to be on two hosts."""

import sys
from pathlib import Path

import pytest

from paceline.comm.node import ranks_by_host
from tests.forked import paceline

SCRIPT = Path(__file__).with_name("node_laws.py")


def test_ranks_of_a_host_stand_in_rank_order():
    assert ranks_by_host((0, 1, 0, 1, 1)) == {0: [0, 2], 1: [1, 3, 4]}


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_node_keeps_the_laws_on_hosts_with_unequal_slots(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    done = paceline("run", "-np", 5, "--", sys.executable, SCRIPT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split()) == sorted(f"[{rank}]" for rank in range(5)) + ["kept"] * 5

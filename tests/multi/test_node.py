"""`node`: shared memory inside a host and gloo between hosts, in real processes that pretend to be on two hosts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.comm.node import ranks_by_host

SCRIPT = Path(__file__).with_name("node_laws.py")


def test_ranks_of_a_host_stand_in_rank_order():
    assert ranks_by_host((0, 1, 0, 1, 1)) == {0: [0, 2], 1: [1, 3, 4]}


@pytest.mark.multi
def test_node_keeps_the_laws_on_hosts_with_unequal_slots(tmp_path):
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), "5", str(tmp_path)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(5)
    ]
    outputs = [worker.communicate(timeout=150)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 5, "\n".join(outputs)

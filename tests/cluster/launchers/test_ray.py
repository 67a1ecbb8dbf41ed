"""Launcher ray against a real Ray of two nodes with addresses of their own, inside a lab."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network
from tests.cluster.training import TRAIN
from tests.multi.test_launch import alive

pytestmark = [pytest.mark.root, pytest.mark.multi, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--disable-usage-stats"]


class RayLab:
    def __init__(self, network, folder):
        self.network, self.folder = network, folder
        self.environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ADDRESS": "10.77.0.1:6379",
        }

    def started(self, host, words):
        return subprocess.Popen(
            [*self.network.prefix(host), *words],
            cwd=ROOT,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def paceline(self, *words):
        launcher = "ray(address='10.77.0.1:6379', slots=1)"
        return self.started(0, [sys.executable, "-m", "paceline", "run", "--launcher", launcher, *words])


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    pytest.importorskip("ray")
    folder = tmp_path_factory.mktemp("ray")
    with Network(Lab(2, "500mbit")) as network:
        lab = RayLab(network, folder)
        head = [*RAY, "--head", "--port=6379", "--node-ip-address=10.77.0.1", "--include-dashboard=false"]
        head += ["--temp-dir", str(folder / "t")]
        nodes = [lab.started(0, head)]
        try:
            _until_joined(lab, 1)
            nodes.append(lab.started(1, [*RAY, "--address=10.77.0.1:6379", "--node-ip-address=10.77.0.2"]))
            _until_joined(lab, 2)
            yield lab
        finally:
            for node in reversed(nodes):
                node.send_signal(signal.SIGTERM)
            for node in nodes:
                node.communicate(timeout=30)


def _until_joined(lab, count):
    code = "import ray; ray.init('10.77.0.1:6379', log_to_driver=False); print('nodes', len(ray.nodes()))"
    limit = time.monotonic() + 90
    while f"nodes {count}" not in lab.started(0, [sys.executable, "-c", code]).communicate()[0]:
        assert time.monotonic() < limit, "Ray does not start"
        time.sleep(0.5)


def test_training_on_two_nodes_of_ray_ends_with_the_weights_of_one_host(lab, tmp_path):
    script, many, one = tmp_path / "train.py", tmp_path / "many.pt", tmp_path / "one.pt"
    script.write_text(TRAIN)
    before = lab.network.received()
    process = lab.paceline("-np", "2", "--", sys.executable, str(script), str(many))
    text, _ = process.communicate(timeout=150)
    assert process.returncode == 0, text
    assert re.search(r"\[0\] trained on \w+ \[0, 1\]", text), text
    moved = [now - then for now, then in zip(lab.network.received(), before, strict=True)]
    words = [sys.executable, "-m", "paceline", "run", "-np", "2", "--", sys.executable, str(script), str(one)]
    done = subprocess.run(words, cwd=ROOT, env=lab.environ, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    weights, wanted = torch.load(many), torch.load(one)
    for name in wanted:
        torch.testing.assert_close(weights[name], wanted[name], atol=1e-5, rtol=1e-5)
    nbytes = sum(tensor.nbytes for tensor in wanted.values())
    assert min(moved) > 10 * nbytes, "both nodes received the gradients of ten steps"


def test_a_killed_actor_is_reported_with_its_ranks(lab, tmp_path):
    code = "import os, pathlib, sys, time; "
    code += "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(str(os.getpid())); time.sleep(120)"
    process = lab.paceline("-np", "2", "--", sys.executable, "-S", "-c", code, str(tmp_path))
    limit = time.monotonic() + 90
    while len(list(tmp_path.iterdir())) < 2 or not all(path.read_text() for path in tmp_path.iterdir()):
        assert time.monotonic() < limit, process.kill() or process.communicate()[0]
        time.sleep(0.1)
    pids = {int(path.name): int(path.read_text()) for path in tmp_path.iterdir()}
    agent = _parent(pids[1])
    os.kill(_parent(agent), signal.SIGKILL)
    text, _ = process.communicate(timeout=40)
    assert process.returncode == 1, text
    assert re.search(r"node-\w+ is lost: its agent ended; it had rank 1", " ".join(text.split())), text
    while any(alive(pid) for pid in pids.values()):
        assert time.monotonic() < limit + 30
        time.sleep(0.1)


def _parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

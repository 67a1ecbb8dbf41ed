"""Launcher ray against a real Ray of two nodes with addresses of their own, inside a lab."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network
from tests.multi.test_launch import alive

pytestmark = [pytest.mark.root, pytest.mark.multi, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--disable-usage-stats"]
SCRIPT = """
import sys, torch, paceline
worker = paceline.join()
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(3):
    model(torch.full((2, 8), float(worker.rank + step))).sum().backward()
    pace.step()
print("rank", worker.rank, list(worker.comm.placement), f"{model.weight.sum().item():.4f}")
worker.close()
"""


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


def test_training_on_two_nodes_of_ray(lab, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    before = lab.network.received()
    process = lab.paceline("-np", "2", "--", sys.executable, str(script))
    text, _ = process.communicate(timeout=150)
    assert process.returncode == 0, text
    sums = re.findall(r"\[\d\] rank (\d) \[0, 1\] (\S+)", text)
    assert sorted(rank for rank, _ in sums) == ["0", "1"]
    assert len({total for _, total in sums}) == 1
    assert all(now > then for now, then in zip(lab.network.received(), before, strict=True))


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

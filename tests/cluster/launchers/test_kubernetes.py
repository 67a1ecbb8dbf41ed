"""Launcher kubernetes: the Job that it writes, and the very commands of its pods on hosts of a lab."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network
from paceline.cluster.launchers import MENU
from paceline.cluster.launchers.kubernetes import Kubernetes
from paceline.errors import WrongCommand
from paceline.run.run import Run

ROOT = Path(__file__).parents[3]
FULL = "kubernetes(image=me/train:1, pods=3, slots=4, job=mine, cpu=4, gpu=2, shm=8Gi, claim=data, host_network=true)"


def documents(text):
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(text))


@pytest.mark.parametrize("text", ["kubernetes", FULL], ids=["plain", "full"])
def test_the_manifest_passes_validation(text):
    validate = pytest.importorskip("kubernetes_validate")
    launcher = MENU.make(text)
    manifest = launcher.manifest(["python", "-m", "paceline", "run", "--model", "a: 'b' #c"])
    service, job = documents(manifest)
    for document in (service, job):
        validate.validate(document, "1.31", strict=True)
    assert service["spec"]["clusterIP"] == "None"
    pod = job["spec"]["template"]["spec"]
    assert (job["spec"]["completionMode"], job["spec"]["completions"]) == ("Indexed", launcher.pods)
    assert pod["subdomain"] == service["metadata"]["name"] == launcher.job
    assert pod["containers"][0]["command"][-1] == "a: 'b' #c"
    assert pod.get("hostNetwork", False) == launcher.host_network
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": launcher.shm}
    assert ("nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]) == bool(launcher.gpu)


def test_the_manifest_holds_no_secret():
    manifest = Kubernetes().manifest(["paceline", "run"])
    assert "secretKeyRef" in manifest
    assert 'kind: "Secret"' not in manifest


def test_pods_are_hosts_with_headless_names():
    launcher = Kubernetes(pods=2, slots=2, job="j")
    assert [(host.name, host.address) for host in launcher.hosts({})] == [("j-0", "j-0.j"), ("j-1", "j-1.j")]
    assert Run(workers=4, launcher="kubernetes(pods=2, slots=2)").cluster.nodes == (0, 0, 1, 1)
    with pytest.raises(WrongCommand, match="is not pod 0 of a Job"):
        launcher.check(())


def paceline(*words):
    return [sys.executable, "-m", "paceline", *words]


TRAIN = """
import os, torch, paceline
torch.manual_seed(0)
worker = paceline.join()
model = torch.nn.Linear(512, 512)
pace = paceline.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(5):
    model(torch.full((2, 512), float(worker.rank + step))).sum().backward()
    pace.step()
total = f"{model.weight.sum().item():.4f}"
print("rank", worker.rank, "on", os.environ["NODE_RANK"], os.environ["MASTER_ADDR"], list(worker.comm.placement), total)
worker.close()
"""


@pytest.mark.root
@pytest.mark.multi
def test_the_commands_of_all_pods_train_to_the_end_where_the_headless_names_resolve(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = ["run", "--launcher", "kubernetes(pods=2, slots=2, job=j)", "-np", "4", "--", sys.executable, str(script)]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in the image, python3 is the one with paceline
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(paceline(*words), cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    _, job = documents(done.stdout)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["env"][0]["name"] == "PACELINE_TOKEN"
    with Network(Lab(2, "200mbit")) as network, names(network, 2):
        before = network.received()
        pods = [
            subprocess.Popen(
                [*network.prefix(index), *container["command"]],
                cwd=ROOT,
                env={**environ, "JOB_COMPLETION_INDEX": str(index), "PACELINE_TOKEN": "0123456789abcdef" * 4},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for index in range(2)
        ]
        lines = [pod.communicate(timeout=90)[0] for pod in pods]
        moved = [now - then for now, then in zip(network.received(), before, strict=True)]
    assert [pod.returncode for pod in pods] == [0, 0], lines
    sums = re.findall(r"\[(\d)\] rank \1 on (\d) 10\.77\.0\.1 \[0, 0, 2, 2\] (\S+)", lines[0])
    assert sorted((int(rank), int(node)) for rank, node, _ in sums) == [(0, 0), (1, 0), (2, 1), (3, 1)], lines
    assert len({total for *_, total in sums}) == 1
    assert min(moved) > 0.9 * 5 * 4 * 512 * 512, "both pods received the gradients of five steps"


class names:
    """What the headless Service does: /etc/hosts of every host of the lab names all of them."""

    def __init__(self, network, count):
        self.folders = [Path("/etc/netns") / network.namespace(index) for index in range(count)]
        self.text = "127.0.0.1 localhost\n" + "".join(f"{network.address(k)} j-{k}.j\n" for k in range(count))

    def __enter__(self):
        for folder in self.folders:
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(self.text)

    def __exit__(self, *_):
        for folder in self.folders:
            shutil.rmtree(folder)
        if not list(Path("/etc/netns").iterdir()):
            Path("/etc/netns").rmdir()

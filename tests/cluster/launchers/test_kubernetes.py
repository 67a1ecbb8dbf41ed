"""Launcher kubernetes: the Job that it writes, and the very commands of its pods on hosts of a lab."""

import os
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


@pytest.mark.root
@pytest.mark.multi
def test_the_commands_of_all_pods_run_to_the_end_where_the_headless_names_resolve(tmp_path):
    code = "import os; print('rank', os.environ['RANK'], 'on', os.environ['NODE_RANK'], os.environ['MASTER_ADDR'])"
    words = ["run", "--launcher", "kubernetes(pods=2, slots=2, job=j)", "-np", "4", "--", sys.executable, "-c", code]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # as in the image, python3 is the one with paceline
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    done = subprocess.run(paceline(*words), cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    _, job = documents(done.stdout)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["env"][0]["name"] == "PACELINE_TOKEN"
    with Network(Lab(2, "200mbit")) as network, names(network, 2):
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
    assert [pod.returncode for pod in pods] == [0, 0], lines
    for rank in range(4):
        assert f"[{rank}] rank {rank} on {rank // 2} 10.77.0.1" in lines[0]


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

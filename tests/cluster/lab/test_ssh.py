"""Launcher ssh against a real sshd in every host of a lab: training, every kind of end, and what is refused first."""

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.cluster.ssh_lab import ssh_lab
from tests.cluster.training import TRAIN
from tests.multi.test_launch import alive

pytestmark = [pytest.mark.root, pytest.mark.multi]
HOSTS = "a:1,b:1,c:1,d:1"


@pytest.fixture(scope="module")
def lab():
    with ssh_lab(4) as lab:
        yield lab


def test_training_on_four_hosts_ends_with_the_weights_of_one(lab, tmp_path):
    import torch

    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    before = lab.received()
    many, one = tmp_path / "many.pt", tmp_path / "one.pt"
    code, text = lab.run("run", "-H", HOSTS, "--launcher", lab.launcher, "--", sys.executable, str(script), str(many))
    assert code == 0, text
    assert "[0] trained on" in text
    assert "[0, 1, 2, 3]" in text
    code, text = lab.run("run", "-np", "4", "--", sys.executable, str(script), str(one))
    assert code == 0, text
    weights, wanted = torch.load(many), torch.load(one)
    nbytes = sum(tensor.nbytes for tensor in wanted.values())
    for name in wanted:
        torch.testing.assert_close(weights[name], wanted[name], atol=1e-5, rtol=1e-5)
    moved = [after - then for after, then in zip(lab.received(), before, strict=True)]
    assert min(moved) > 10 * nbytes, "every host received gradients over its interface"


def test_a_run_on_two_hosts_leaves_a_record(lab, tmp_path):
    hostfile, path = tmp_path / "hosts", tmp_path / "r.json"
    hostfile.write_text("c slots=1\nd slots=1\n")
    words = ["--hostfile", str(hostfile), "--launcher", lab.launcher, "--network-interface", "eth0", "--model", "mlp"]
    words += ["--batch-size", "4", "--steps", "2", "--repeats", "2", "--warmup", "1", "--json", str(path)]
    code, text = lab.run("run", *words, environ={"PACELINE_RUNS": str(tmp_path)})
    assert code == 0, text
    record = json.loads(path.read_text())
    assert (record["workers"], record["replicas"]["identical"]) == (2, True)
    assert record["comm"] != "shm"
    assert f"--hostfile {hostfile}" in record["text"]


def sleeping(lab, folder, hosts="b:2,c:2"):
    """Start ranks that sleep on two hosts; return the launcher's process and the pids of all ranks."""
    code = "import os, pathlib, sys, time; "
    code += "pathlib.Path(sys.argv[1], os.environ['RANK']).write_text(str(os.getpid())); time.sleep(90)"
    words = ["run", "-H", hosts, "--launcher", lab.launcher, "--", sys.executable, "-S", "-c", code, str(folder)]
    process = lab.paceline(*words)
    limit = time.monotonic() + 60
    while len(list(folder.iterdir())) < 4 or not all(path.read_text() for path in folder.iterdir()):
        assert time.monotonic() < limit, process.kill() or process.communicate()[0]
        time.sleep(0.05)
    return process, {int(path.name): int(path.read_text()) for path in folder.iterdir()}


def ended(process, pids, seconds=10.0):
    """Wait for the end of everything within some seconds; return what the launcher said."""
    limit = time.monotonic() + seconds
    text, _ = process.communicate(timeout=seconds)
    while any(alive(pid) for pid in pids.values()):
        assert time.monotonic() < limit, "ranks are left"
        time.sleep(0.05)
    assert process.returncode == 1
    return " ".join(text.split())


def agent_of(pid):
    """Return the agent that started a rank."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_killed_worker_ends_everything_and_is_named(lab, tmp_path):
    process, pids = sleeping(lab, tmp_path)
    os.kill(pids[3], signal.SIGKILL)
    assert f"rank 3 (c, pid {pids[3]}) was killed by SIGKILL" in ended(process, pids)


def test_a_killed_agent_ends_everything_and_is_named(lab, tmp_path):
    process, pids = sleeping(lab, tmp_path)
    os.kill(agent_of(pids[0]), signal.SIGKILL)
    assert re.search(r"b is lost: its agent ended.*it had ranks 0, 1", ended(process, pids))


def test_a_cut_host_ends_everything_on_both_sides_and_is_named(lab, tmp_path):
    process, pids = sleeping(lab, tmp_path)
    lab.network.cut(2)
    try:
        assert re.search(r"c is lost: nothing was heard of it for 5 s.*ranks 2, 3", ended(process, pids))
    finally:
        lab.network.heal(2)


def test_the_launcher_at_a_cut_link_does_not_end_a_job_that_is_well(lab, tmp_path):
    """The negative control: cutting a host that takes no part changes nothing."""
    process, pids = sleeping(lab, tmp_path)
    lab.network.cut(3)
    try:
        time.sleep(6)
        assert all(alive(pid) for pid in pids.values())
        assert process.poll() is None
    finally:
        lab.network.heal(3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=15)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ("hosts", "launcher", "message"),
    [
        ("b,nowhere", "ssh(config={config})", r"nowhere: .*resolve.*try: check the spelling of nowhere"),
        ("b,10.77.0.99", "ssh(config={config})", r"10\.77\.0\.99: .*(No route to host|timed out)"),
        (
            "b,c",
            "ssh(config={config}, identity={folder}/wrong_key)",
            r"b and c cannot be used.*Permission denied.*try: ssh-copy-id",
        ),
        ("b,c", "ssh(config={config}, python=/no/such/python)", r"/no/such/python.*try: --launcher"),
        ("b,c", "ssh(config={config}, port=9)", r"refused"),
    ],
    ids=["no such name", "no such host", "wrong key", "no python", "no sshd"],
)
def test_what_is_wrong_with_a_host_is_told_before_anything_starts(lab, tmp_path, hosts, launcher, message):
    mark = tmp_path / "started"
    text = launcher.format(config=lab.config, folder=lab.folder)
    if "wrong_key" in text:
        (tmp_path / "config").write_text(lab.config.read_text().replace(f"IdentityFile {lab.folder}/key", ""))
        text = text.replace(str(lab.config), str(tmp_path / "config"))
    code, said = lab.run("run", "-H", hosts, "--launcher", text, "--", "touch", str(mark))
    said = " ".join(said.split())
    assert code == 1, said
    assert "nothing was started" in said
    assert re.search(message, said), said
    assert not mark.exists()


def test_another_version_is_refused_before_anything_starts(lab, tmp_path):
    mark, python, cluster = tmp_path / "started", tmp_path / "python", tmp_path / "cluster.toml"
    code = "import paceline.cluster.facts as f; f.VERSION = '9.9'; import paceline.cluster.agent as a; a.main([])"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    python.chmod(0o755)
    cluster.write_text(f'[[hosts]]\nname = "b"\n[[hosts]]\nname = "c"\npython = "{python}"\n')
    words = ["run", "--cluster", str(cluster), "--launcher", lab.launcher, "--", "touch", str(mark)]
    code, said = lab.run(*words)
    assert (code, mark.exists()) == (1, False)
    assert "c has paceline 9.9, this machine" in " ".join(said.split())

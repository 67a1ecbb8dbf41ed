"""A lab with a real sshd in every host, and the commands that start paceline on its first host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from paceline.cluster.lab.lab import Lab
from paceline.cluster.lab.network import Network

ROOT = Path(__file__).parents[2]
PORT = 2222
NAMES = "abcdefgh"

SSHD = """
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp internal-sftp
"""
CLIENT = """
Host {name}
    HostName {address}
    Port {port}
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""


class SshLab:
    """A running lab. `config` is the file for ssh; hosts are called a, b, c, ..."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder, self.config = network, folder, folder / "ssh_config"

    @property
    def launcher(self) -> str:
        return f"ssh(config={self.config})"

    def on(self, host: int, argv, **settings):
        """Start a command on a host of the lab."""
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **settings.pop("environ", {})}
        return subprocess.Popen(
            [*self.network.prefix(host), *argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env=environ,
            **settings,
        )

    def paceline(self, *words, **settings):
        """Start paceline on the first host."""
        return self.on(0, [sys.executable, "-m", "paceline", *words], **settings)

    def run(self, *words, **settings):
        """Run paceline on the first host to its end; return its exit code and output."""
        process = self.paceline(*words, **settings)
        text, _ = process.communicate(timeout=120)
        return process.returncode, text

    def received(self):
        return self.network.received()


@contextmanager
def ssh_lab(hosts: int, bandwidth: str = "500mbit"):
    folder = Path(tempfile.mkdtemp(prefix="ssh-lab-"))
    daemons = []
    try:
        with Network(Lab(hosts, bandwidth)) as network:
            lab = SshLab(network, folder)
            _keys(lab, hosts)
            try:
                daemons = [_sshd(lab, host) for host in range(hosts)]
                _await(lab, hosts)
                yield lab
            finally:
                for daemon in daemons:
                    daemon.terminate()
                    daemon.wait()
    finally:
        shutil.rmtree(folder)


def _keys(lab: SshLab, hosts: int) -> None:
    folder = lab.folder
    for name in ("host_key", "key", "wrong_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    public = " ".join((folder / "host_key.pub").read_text().split()[:2])
    places = [lab.network.address(host) for host in range(hosts)]
    (folder / "known_hosts").write_text("".join(f"[{place}]:{PORT} {public}\n" for place in places))
    values = {"port": PORT, "folder": folder}
    lab.config.write_text(
        "".join(CLIENT.format(name=NAMES[k], address=place, **values) for k, place in enumerate(places))
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)


def _sshd(lab: SshLab, host: int) -> subprocess.Popen[bytes]:
    path = lab.folder / f"sshd_config-{host}"
    path.write_text(SSHD.format(address=lab.network.address(host), port=PORT, folder=lab.folder))
    return subprocess.Popen(
        [*lab.network.prefix(host), "/usr/sbin/sshd", "-D", "-f", str(path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _await(lab: SshLab, hosts: int) -> None:
    for host in range(hosts):
        limit = time.monotonic() + 20
        while subprocess.run(
            [*lab.network.prefix(0), "ssh", "-F", str(lab.config), "-o", "BatchMode=yes", NAMES[host], "true"],
            capture_output=True,
            check=False,
        ).returncode:
            assert time.monotonic() < limit, "sshd does not answer"
            time.sleep(0.1)

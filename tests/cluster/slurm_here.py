"""A real Slurm on this machine, of one node or of the hosts of a lab, with its own munge, for the time of a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from paceline.cluster.lab.network import NAMESPACES, Network

CONF = """
ClusterName=paceline
SlurmctldHost={host}({address})
SlurmctldPort={ctld}
SlurmdPort={slurmd}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=2
MinJobAge=300
SchedulerParameters=sched_interval=1,batch_sched_delay=0
PlugStackConfig={folder}/plugstack.conf
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=YES
"""


@contextmanager
def slurm(network: Network | None = None):
    """Run munged, slurmctld and slurmd; yield the environment in which sbatch and srun find them.

    With the network of a lab, its hosts are the nodes n0, n1, ..., and commands of Slurm must run on host 0.
    """
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    daemons = []
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    hosts = [()] if network is None else [_entering(network, k) for k in range(network.lab.hosts)]
    commands = [[*hosts[0], "slurmctld"]]
    commands += [[*words, "slurmd", *(["-N", f"n{k}"] if network else [])] for k, words in enumerate(hosts)]
    try:
        _write(folder, network)
        daemons.append(_munged(folder))
        _until(lambda: (folder / "munge.socket").exists())
        for words in commands:
            words = [*words, "-D", "-f", environ["SLURM_CONF"]]
            daemons.append(subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        _until(lambda: _states(environ, hosts[0]).split() == ["idle"] * len(hosts))
        yield environ
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _entering(network: Network, host: int) -> tuple[str, ...]:
    """Return the prefix that enters a host and keeps /sys, where slurmd looks for control groups."""
    return ("nsenter", f"--net={NAMESPACES / network.namespace(host)}")


def _write(folder: Path, network: Network | None) -> None:
    (folder / "state").mkdir()
    ports = {"ctld": _port(), "slurmd": _port()}
    host = socket.gethostname().partition(".")[0]
    node = f"CPUs={os.cpu_count()} State=UNKNOWN"
    nodes, address = [f"NodeName={host} NodeAddr=127.0.0.1 {node}"], "127.0.0.1"
    if network is not None:
        places = map(network.address, range(network.lab.hosts))
        nodes = [f"NodeName=n{k} NodeHostname={host} NodeAddr={place} {node}" for k, place in enumerate(places)]
        address = network.address(0)
    (folder / "plugstack.conf").write_text("")
    text = CONF.format(folder=folder, host=host, address=address, nodes="\n".join(nodes), **ports)
    (folder / "slurm.conf").write_text(text)


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    """munged refuses folders that others may write; it runs as its own user where there is one."""
    place = folder / "munge"
    place.mkdir(mode=0o755)
    key = place / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    words = ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={key}"]
    words += [f"--pid-file={place}/pid", f"--seed-file={place}/seed", f"--log-file={place}/log"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _states(environ, prefix) -> str:
    """Return the state of each node on a line of its own."""
    done = subprocess.run(
        [*prefix, "sinfo", "-h", "-N", "-o", "%t"], env=environ, capture_output=True, text=True, check=False
    )
    return done.stdout


def _until(condition, seconds=30.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "Slurm does not start"
        time.sleep(0.1)


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

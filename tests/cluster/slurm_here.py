"""A real Slurm of one node on this machine, with its own munge, for the time of a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

CONF = """
ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
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
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=60 State=UP OverSubscribe=YES
"""


@contextmanager
def slurm():
    """Run munged, slurmctld and slurmd; yield the environment in which sbatch and srun find them."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    daemons = []
    environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    try:
        _write(folder)
        daemons.append(_munged(folder))
        _until(lambda: (folder / "munge.socket").exists())
        for name in ("slurmctld", "slurmd"):
            words = [name, "-D", "-f", environ["SLURM_CONF"]]
            daemons.append(subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        _until(lambda: "idle" in _states(environ))
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


def _write(folder: Path) -> None:
    for name in ("state", "spool"):
        (folder / name).mkdir()
    ports = {"ctld": _port(), "slurmd": _port()}
    host = socket.gethostname().partition(".")[0]
    (folder / "plugstack.conf").write_text("")
    (folder / "slurm.conf").write_text(CONF.format(folder=folder, host=host, cpus=os.cpu_count(), **ports))


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


def _states(environ) -> str:
    done = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environ, capture_output=True, text=True, check=False)
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

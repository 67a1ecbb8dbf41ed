"""Find out which program started this process, and read rank, size and meeting place from its variables.

paceline run      PACELINE_STORE, with RANK, WORLD_SIZE, LOCAL_RANK
torchrun          RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT
mpirun            OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE           (Open MPI)
mpiexec           PMI_RANK, PMI_SIZE, MPI_LOCALRANKID                             (MPICH and relatives)
srun              SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID               (Slurm)

MPI and Slurm tell a process its rank, but not the address at which ranks meet. On one host this is the loopback
address; on several hosts it is MASTER_ADDR, or the first host of a Slurm step. The port is MASTER_PORT, or else it is
computed from the id of the job.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import WrongCommand

PORTS = range(20000, 32000)  # below those that kernels give to outgoing connections


@dataclass(frozen=True)
class Starter:
    """The program that started this process. `variables` are its settings under the names that torchrun uses."""

    name: str
    variables: Mapping[str, str]
    address: str = ""  # where rank 0 listens, if the program does not run a store of its own
    port: int = 0

    def __str__(self) -> str:
        rank, size = self.variables.get("RANK", "0"), self.variables.get("WORLD_SIZE", "1")
        place = f", ranks meet at {self.address}:{self.port}" if self.port else ""
        return f"rank {rank} of {size}, started by {self.name}{place}"


def starter_of(environ: Mapping[str, str]) -> Starter:
    """Return the program that started this process, according to its environment."""
    if "PACELINE_STORE" in environ:
        return Starter("paceline", environ)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return Starter("torchrun" if "TORCHELASTIC_RUN_ID" in environ else "RANK and WORLD_SIZE", environ)
    if "OMPI_COMM_WORLD_RANK" in environ:
        return _met(
            "mpirun (OMPI_COMM_WORLD_RANK)",
            environ,
            rank="OMPI_COMM_WORLD_RANK",
            size="OMPI_COMM_WORLD_SIZE",
            local=("OMPI_COMM_WORLD_LOCAL_RANK",),
            here=("OMPI_COMM_WORLD_LOCAL_SIZE",),
            job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"),
        )
    if "PMI_RANK" in environ and "PMI_SIZE" in environ:
        return _met(
            "mpiexec (PMI_RANK)",
            environ,
            rank="PMI_RANK",
            size="PMI_SIZE",
            local=("MPI_LOCALRANKID", "SLURM_LOCALID"),
            here=("MPI_LOCALNRANKS",),
            job=("PMI_ID", "HYDRA_CONTROL_FD", "SLURM_JOB_ID"),
        )
    if "SLURM_PROCID" in environ and "SLURM_STEP_NUM_TASKS" in environ:
        return _met(
            "srun (SLURM_PROCID)",
            environ,
            rank="SLURM_PROCID",
            size="SLURM_STEP_NUM_TASKS",
            local=("SLURM_LOCALID",),
            here=(),
            job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        )
    return Starter("nobody: one process", environ)


def _met(
    name: str,
    environ: Mapping[str, str],
    *,
    rank: str,
    size: str,
    local: tuple[str, ...],
    here: tuple[str, ...],
    job: tuple[str, ...],
) -> Starter:
    size_text = environ.get(size, "1")
    variables = {
        **environ,
        "RANK": environ[rank],
        "WORLD_SIZE": size_text,
        "LOCAL_RANK": next((environ[name] for name in local if name in environ), environ[rank]),
    }
    if size_text == "1":
        return Starter(name, variables)
    one_host = any(environ.get(each) == size_text for each in here) or environ.get("SLURM_STEP_NUM_NODES") == "1"
    address = environ.get("MASTER_ADDR") or ("127.0.0.1" if one_host else first_node(environ))
    if not address:
        raise WrongCommand(
            f"{name} on several hosts without MASTER_ADDR",
            why="ranks cannot find each other",
            remedy="mpirun -x MASTER_ADDR=HOST, the host of rank 0",
        )
    return Starter(name, variables, address, _port(environ, job))


def _port(environ: Mapping[str, str], job: tuple[str, ...]) -> int:
    text = environ.get("MASTER_PORT", "")
    if text:
        if not text.isdecimal() or not 0 < int(text) < 1 << 16:
            raise WrongCommand(f"MASTER_PORT={text}", why="it is a number from 1 to 65535")
        return int(text)
    number = "/".join(environ.get(name, "") for name in job)
    return PORTS[zlib.crc32(number.encode()) % len(PORTS)]


def first_node(environ: Mapping[str, str]) -> str:
    """Return the first host of a Slurm step. Slurm writes lists of hosts as n[01-04,07],m2."""
    text = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", text)
    return match[1] + (match[2] or "") if match else ""

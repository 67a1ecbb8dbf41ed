"""Who started this process, read from its environment."""

import pytest

from paceline.comm.position import position
from paceline.comm.starters import PORTS, first_node, starter_of
from paceline.errors import WrongCommand

OMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "prterun-x-1@1",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "42",
    "SLURM_STEP_ID": "0",
}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "h"}
OURS = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "PACELINE_STORE": "/f"}


@pytest.mark.parametrize(
    ("environ", "name", "rank", "size", "local"),
    [
        ({}, "nobody", 0, 1, 0),
        (OURS, "paceline", 1, 2, 1),
        (TORCHRUN, "torchrun", 1, 2, 1),
        ({"RANK": "1", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE", 1, 2, 1),
        (OMPI, "mpirun", 3, 4, 1),
        (PMI, "mpiexec", 1, 2, 1),
        (SLURM, "srun", 5, 8, 1),
    ],
    ids=["alone", "paceline", "torchrun", "by hand", "Open MPI", "PMI", "Slurm"],
)
def test_every_starter_is_understood_and_named(environ, name, rank, size, local):
    where = position(environ)
    assert (where.rank, where.size, where.local_rank) == (rank, size, local)
    assert f"started by {name}" in where.started_by


def test_the_nearest_starter_wins():
    """An agent of ours runs under srun, mpirun inside an allocation, and torchrun anywhere."""
    for inner, name in ((OURS, "paceline"), (TORCHRUN, "torchrun"), (OMPI, "mpirun (OMPI_COMM_WORLD_RANK)")):
        assert starter_of({**SLURM, **inner}).name == name


def test_ranks_of_one_host_meet_at_loopback_and_of_several_at_the_first():
    assert position(OMPI).first == ("127.0.0.1", starter_of(OMPI).port)
    assert position(SLURM).first == ("gpu07", starter_of(SLURM).port)
    assert starter_of(SLURM).port in PORTS
    assert position({**SLURM, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}).first == ("10.0.0.1", 1234)
    assert starter_of(SLURM).port != starter_of({**SLURM, "SLURM_STEP_ID": "1"}).port, "two steps of one job"
    assert position({**OMPI, "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}).first is None


def test_mpirun_on_several_hosts_needs_an_address():
    with pytest.raises(WrongCommand, match=r"without MASTER_ADDR.*try: mpirun -x MASTER_ADDR=HOST"):
        position({**OMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"})
    with pytest.raises(WrongCommand, match="MASTER_PORT=http"):
        position({**OMPI, "MASTER_PORT": "http"})


@pytest.mark.parametrize(
    ("text", "first"), [("a", "a"), ("a,b", "a"), ("n[01-04,07]", "n01"), ("n[3],m2", "n3"), ("", "")]
)
def test_the_first_host_of_a_list_of_slurm(text, first):
    assert first_node({"SLURM_STEP_NODELIST": text}) == first


def test_inside_a_batch_script_without_srun_a_process_is_alone():
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "42"}
    assert position(batch).size == 1

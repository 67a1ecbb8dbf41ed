"""Seats say which rank runs on which host. Environment variables pass this on to the processes.

rank      0  1  2  3        RANK, WORLD_SIZE
host      a  a  b  b        GROUP_RANK, MASTER_ADDR: the host of rank 0
local     0  1  0  1        LOCAL_RANK, LOCAL_WORLD_SIZE
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from paceline.types import HERE, Cluster, Host, Place, Seat

# A training step frees and allocates the same memory again and again. By default glibc returns much of it to
# the kernel and faults it in again, page by page; these settings keep it, in huge pages where the kernel has them.
# They apply to every strategy and reference, and a caller's own setting wins.
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


def seats_on(hosts: Sequence[Host], place: Callable[[int], Place] = lambda rank: Place()) -> tuple[Seat, ...]:
    """Return one seat per rank; `hosts[r]` is the host of rank r."""
    taken: dict[str, int] = {}
    seats = []
    for rank, host in enumerate(hosts):
        local = taken.get(host.name, 0)
        taken[host.name] = local + 1
        seats.append(Seat(rank, host, local, place(rank)))
    return tuple(seats)


def seats_here(count: int) -> tuple[Seat, ...]:
    """Return seats on this machine."""
    return seats_on([HERE] * count)


def hosts_in(seats: Sequence[Seat]) -> tuple[Host, ...]:
    """Return each host once, in the order of the first rank on it."""
    return tuple({seat.host.name: seat.host for seat in seats}.values())


def cluster_of(seats: Sequence[Seat]) -> Cluster:
    """Return the host index of each rank. Hosts are numbered in the order of the first rank on them."""
    names = [host.name for host in hosts_in(seats)]
    return Cluster(tuple(names.index(seat.host.name) for seat in seats))


def environment_of(
    seat: Seat,
    seats: Sequence[Seat],
    workers: int,
    environ: Mapping[str, str],
    *,
    port: int,
    store: str,
    folder: str,
    sharing: int,
) -> dict[str, str]:
    """Return the environment of a rank: that of the caller, plus the variables that torchrun would set.

    `seats` are those of the whole job. The cores of this machine are divided among `sharing` workers.
    """
    # An outer torchrun announces its own store in these; ranks of this job must not use it.
    inherited = {name: value for name, value in environ.items() if not name.startswith("TORCHELASTIC_")}
    cores = len(os.sched_getaffinity(0))
    network = {"GLOO_SOCKET_IFNAME": seat.host.interface} if seat.host.interface else {}
    gentle = {**network, "OMP_NUM_THREADS": str(max(1, cores // max(1, sharing))), **KEEP_MEMORY}
    alone = seat.host == HERE
    node = str(cluster_of(seats).nodes[seat.rank])
    return {
        **gentle,
        **inherited,
        **({} if alone else network),
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(seat.local_rank),
        "LOCAL_WORLD_SIZE": str(max(1, sum(neighbor.host.name == seat.host.name for neighbor in seats[:workers]))),
        "GROUP_RANK": node,
        "NODE_RANK": node,
        "MASTER_ADDR": seats[0].host.address or seats[0].host.name,
        "MASTER_PORT": str(port),
        "PACELINE_SERVERS": str(len(seats) - workers),
        "PACELINE_STORE": store,
        "PACELINE_JOB": folder,
        "PYTHONUNBUFFERED": "1",
        **seat.host.environ,
        **seat.place.environ,
    }

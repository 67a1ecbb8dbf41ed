"""Run by every rank of a test: the comm laws over `node`, with hosts that are not equal, against gloo.

paceline run -np 5 -- python tests/multi/node_laws.py FOLDER
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from paceline.comm.node import NodeComm
from paceline.comm.rendezvous import FolderStore
from paceline.comm.torch.gloo import GlooComm
from paceline.types import Unit
from tests.laws.comm_laws import LAWS, total, value

HOSTS = (0, 1, 0, 1, 1)  # dealt in turn, and one host has a rank more


def sums_equal_gloo(node, gloo):
    generator = torch.Generator().manual_seed(node.rank)
    src = torch.randn(100_001, generator=generator, dtype=torch.float64)
    ours, theirs = torch.zeros_like(src), torch.zeros_like(src)
    node.all_sum(src, ours, "ours").wait()
    gloo.all_sum(src, theirs, "theirs").wait()
    assert torch.allclose(ours, theirs, atol=1e-12)


def steps_of_an_arena(comm):
    """Many chunks under way at once, as an engine sends them."""
    src, dst = comm.allocate(50_000, torch.float32), comm.allocate_result(50_000, torch.float32)
    src.copy_(value(comm.rank, 50_000))
    for step in range(5):
        cuts = range(0, 50_000, 5000)
        works = [comm.all_sum(src[at : at + 5000], dst[at : at + 5000], Unit(step, at)) for at in cuts]
        for work in works:
            work.wait()
        assert torch.equal(dst, total(comm.size, 50_000))
        comm.barrier()


def groups_inside_a_host_use_memory(comm):
    hosts = [[0, 2], [1, 3, 4]]
    inside = comm.split(hosts)
    assert type(inside).__name__ == "Lockstep"
    out = torch.zeros(10)
    inside.all_sum(torch.ones(10), out).wait()
    assert out[0] == len(next(host for host in hosts if comm.rank in host))
    across = comm.split([[0, 1], [2, 3], [4]])
    across.all_sum(torch.ones(10), out).wait()
    assert out[0] == (1 if comm.rank == 4 else 2)


def main(rank, size, folder):
    torch.set_num_threads(1)
    store = FolderStore(Path(folder))
    gloo = GlooComm(rank, size, dist.FileStore(f"{folder}/torch", size), 60.0, HOSTS[:size])
    gloo.compare_calls(None)
    comm = NodeComm(gloo, store)
    for law in (*LAWS, steps_of_an_arena, groups_inside_a_host_use_memory):
        if law.__name__ not in (
            "counted_bytes_are_the_declared_ones",
            "a_large_sum_costs_each_rank_what_the_exchange_declares",
        ):
            law(comm)
    sums_equal_gloo(comm, gloo)
    comm.barrier()
    if size == 5:
        bytes_cross_hosts_once(comm)
    comm.close()
    print("kept")


def bytes_cross_hosts_once(comm):
    """Two slices: ranks with one hear half of the vector from the other host, twice a half of it in a ring of two."""
    numel = 64_000
    src, dst = comm.allocate(numel, torch.float32), comm.allocate_result(numel, torch.float32)
    comm.barrier()
    before = comm.received()
    comm.all_sum(src, dst, Unit(9, 9)).wait()
    comm.barrier()
    got = [after - then for after, then in zip(comm.received(), before, strict=True)]
    other = sum(nbytes for rank, nbytes in enumerate(got) if HOSTS[rank] != HOSTS[comm.rank])
    assert other == (0 if comm.rank == 4 else 2 * numel), (comm.rank, got)


if __name__ == "__main__":
    main(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1])

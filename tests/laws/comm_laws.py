"""Laws of a comm: functions of one rank's comm that assert. Run on threads and on real processes."""

import pytest
import torch

from paceline.errors import PeerLost
from paceline.strategy.exchanges.allreduce import AllReduce
from paceline.types import Cluster, Mixing, spread

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
)
LENGTHS = (0, 1, 3, 17, 1000, 300_001)


def value(rank, numel, dtype=torch.float32):
    """A small-number vector that differs by rank and exactly representable in every dtype."""
    return ((torch.arange(numel) * 3 + rank) % 5).to(dtype)


def total(size, numel, dtype=torch.float32):
    return sum(value(rank, numel, torch.float64) for rank in range(size)).to(dtype)


def sums_of_any_tensor(comm):
    for numel in LENGTHS:
        src, dst = value(comm.rank, numel), torch.full((numel,), -1.0)
        kept = src.clone()
        comm.all_sum(src, dst, "x").wait()
        assert torch.equal(dst, total(comm.size, numel)), numel
        assert torch.equal(src, kept), "the source was written"


def sums_of_allocated_memory(comm):
    for numel in LENGTHS:
        src, dst = comm.allocate(numel, torch.float32), comm.allocate_result(numel, torch.float32)
        src.copy_(value(comm.rank, numel))
        comm.all_sum(src, dst, "x").wait()
        assert torch.equal(dst, total(comm.size, numel)), numel
        assert torch.equal(src, value(comm.rank, numel)), "the source was written"
        comm.barrier()


def sums_of_ranges_of_an_arena(comm):
    src, dst = comm.allocate(1000, torch.float32), comm.allocate_result(1000, torch.float32)
    src.copy_(value(comm.rank, 1000))
    works = [comm.all_sum(src[a:b], dst[a:b], f"{a}") for a, b in ((0, 13), (13, 500), (500, 1000))]
    for work in works:
        work.wait()
    assert torch.equal(dst, total(comm.size, 1000))
    assert all(work.done() for work in works)
    comm.barrier()


def sums_of_any_dtype(comm):
    for dtype in DTYPES:
        dst = torch.zeros(77, dtype=dtype)
        comm.all_sum(value(comm.rank, 77, dtype), dst, dtype).wait()
        assert torch.equal(dst, total(comm.size, 77, dtype)), dtype


def shapes_are_kept(comm):
    src, dst = value(comm.rank, 24).view(2, 3, 4), torch.zeros(2, 3, 4)
    comm.all_sum(src, dst).wait()
    assert torch.equal(dst, total(comm.size, 24).view(2, 3, 4))


def repeated_sums_do_not_mix(comm):
    src, dst = comm.allocate(4096, torch.float32), comm.allocate_result(4096, torch.float32)
    for step in range(50):
        src.fill_(comm.rank + step)
        comm.all_sum(src, dst, step).wait()
        expected = sum(range(comm.size)) + comm.size * step
        assert dst[0] == expected
        assert dst[-1] == expected
    comm.barrier()


def many_sums_may_fly_at_once(comm):
    pairs = [(value(comm.rank + k, 5000), torch.zeros(5000)) for k in range(20)]
    works = [comm.all_sum(src, dst, k) for k, (src, dst) in enumerate(pairs)]
    for k, (work, (_, dst)) in reversed(list(enumerate(zip(works, pairs, strict=True)))):
        work.wait()
        assert torch.equal(dst, sum(value(rank + k, 5000) for rank in range(comm.size)))


def results_are_bit_identical(comm):
    generator = torch.Generator().manual_seed(comm.rank)
    src, dst = torch.randn(9999, generator=generator), torch.zeros(9999)
    comm.all_sum(src, dst).wait()
    rows = torch.zeros(comm.size, 9999)
    comm.all_gather(dst, rows).wait()
    assert all(torch.equal(row, dst) for row in rows)


def a_part_of_the_sum(comm):
    for numel in (1, 7, 1000, 300_001):
        bounds = spread(numel, comm.size)
        mine = slice(bounds[comm.rank], bounds[comm.rank + 1])
        dst = torch.zeros(mine.stop - mine.start)
        comm.reduce_scatter(value(comm.rank, numel), dst).wait()
        assert torch.equal(dst, total(comm.size, numel)[mine])


def gathers_stand_in_rank_order(comm):
    for numel in (0, 1, 5, 300_001):
        dst = torch.zeros(comm.size * numel)
        comm.all_gather(value(comm.rank, numel), dst).wait()
        assert torch.equal(dst, torch.cat([value(rank, numel) for rank in range(comm.size)]))


def broadcasts_reach_everybody(comm):
    for numel in (0, 1, 5, 300_001):
        for root in {0, comm.size - 1}:
            tensor = value(comm.rank, numel)
            comm.broadcast(tensor, root).wait()
            assert torch.equal(tensor, value(root, numel))


def broadcasts_keep_memory_formats(comm):
    tensor = value(comm.rank, 48).view(2, 2, 3, 4).to(memory_format=torch.channels_last)
    comm.broadcast(tensor, 0).wait()
    assert torch.equal(tensor, value(0, 48).view(2, 2, 3, 4))
    assert tensor.is_contiguous(memory_format=torch.channels_last)


def counted_bytes_are_the_declared_ones(comm):
    numel = 12345
    src, dst = comm.allocate(numel, torch.float32), comm.allocate_result(numel, torch.float32)
    before = comm.received()
    comm.all_sum(src, dst).wait()
    got = [after - then for after, then in zip(comm.received(), before, strict=True)]
    declared = [0] * comm.size
    for flows in declared_flows(comm, 4 * numel):
        for flow in flows:
            if flow.dst == comm.rank:
                declared[flow.src] += flow.nbytes
    assert got == declared
    comm.barrier()


def declared_flows(comm, nbytes):
    """The flows of a comm with patterns of its own, else those that the exchange declares."""
    if hasattr(comm, "sum_flows"):
        return comm.sum_flows(nbytes)
    return AllReduce().traffic(nbytes, Cluster.of_one_host(comm.size))


def a_large_sum_costs_each_rank_what_the_exchange_declares(comm):
    """In total: a ring moves the same bytes along other edges."""
    numel = 300_000
    src, dst, before = torch.ones(numel), torch.zeros(numel), sum(comm.received())
    comm.all_sum(src, dst).wait()
    rounds = AllReduce().traffic(4 * numel, Cluster.of_one_host(comm.size))
    declared = sum(flow.nbytes for flows in rounds for flow in flows if flow.dst == comm.rank)
    assert abs(sum(comm.received()) - before - declared) <= 128 * comm.size  # parts end at cache lines
    comm.barrier()


def windows_need_no_help_of_their_target(comm):
    sources = [[(rank - 1) % comm.size] if comm.size > 1 else [] for rank in range(comm.size)]
    window = comm.window(1000, torch.float64, sources)
    before, mine = comm.received(), value(comm.rank, 1000, torch.float64)
    window.show(mine)
    comm.barrier()
    for target in window.targets:
        window.put(target, mine).wait()
        work = window.accumulate(target, mine, 2.0)
        work.wait()
        assert work.done()
    comm.barrier()
    declared = [0] * comm.size
    for source in window.sources:
        declared[source] += 2 * 8000
        assert window.versions() == {source: 2}
        assert torch.equal(folded(window, source), 3 * value(source, 1000, torch.float64))
        assert not window.fold(source, window.empty()), "it was cleared"
        window.get(source, 0.5).wait()
        assert torch.equal(folded(window, source), 0.5 * value(source, 1000, torch.float64))
        declared[source] += 8000
    assert [now - then for now, then in zip(comm.received(), before, strict=True)] == declared
    for _ in range(5):
        for rank in range(comm.size):
            with window.mutex(rank):
                pass
    comm.barrier()
    window.free()
    assert [now - then for now, then in zip(comm.received(), before, strict=True)] == declared


def folded(window, source):
    into = window.empty()
    assert window.fold(source, into, clear=True)
    return into


def boards_are_read_in_order_beside_collectives(comm):
    board = comm.board(5)
    out = torch.zeros(3)
    for turn in range(4):
        numbers = [10 * turn + k for k in range(4)]
        for number in numbers:
            if comm.rank == 0:
                board.say(number)
            else:
                assert board.hear("a number") == number
        comm.all_sum(torch.ones(3), out).wait()
        assert out[0] == comm.size


def a_wait_ends_at_its_deadline_and_goes_on_after_it(comm):
    comm.get_ready()
    board, out = comm.board(1), torch.zeros(4)
    if comm.rank:
        board.hear("that rank 0 has waited", 20)
    work = comm.all_sum(torch.ones(4), out, "chunk 7 at step 812")
    if comm.rank == 0 and comm.size > 1:
        told = r"^(rank [1-9].*|a rank) stopped answering.* in all_sum of (4 float32, )?chunk 7 at step 812"
        with pytest.raises(PeerLost, match=told) as caught:
            work.wait(0.1)
        late = range(1, comm.size) if comm.names_ranks else (None,)
        assert caught.value.rank in late, "torch.distributed does not say who"
        board.say(1)
    work.wait()
    assert out[0] == comm.size


def half_precision_is_mixed_in_float32(comm):
    """Equal numbers stay equal, whatever the weights: in bf16 a sum of six sixths would not be one."""
    peers = [peer for peer in range(comm.size) if peer != comm.rank]
    for dtype in (torch.bfloat16, torch.float16):
        src = (1 + torch.arange(1000) / 1000).to(dtype)
        dst = torch.zeros_like(src)
        for keep in (1 / 6, 1 / 3, 0.1):
            weight = (1 - keep) / max(1, len(peers))
            mixing = Mixing(keep if peers else 1.0, tuple((peer, weight) for peer in peers), tuple(peers))
            comm.mix(src, dst, mixing, "half precision").wait()
            assert torch.equal(dst, src), (dtype, keep)


LAWS = (
    sums_of_any_tensor,
    sums_of_allocated_memory,
    sums_of_ranges_of_an_arena,
    sums_of_any_dtype,
    shapes_are_kept,
    repeated_sums_do_not_mix,
    many_sums_may_fly_at_once,
    results_are_bit_identical,
    half_precision_is_mixed_in_float32,
    a_part_of_the_sum,
    gathers_stand_in_rank_order,
    broadcasts_reach_everybody,
    broadcasts_keep_memory_formats,
    counted_bytes_are_the_declared_ones,
    a_large_sum_costs_each_rank_what_the_exchange_declares,
    windows_need_no_help_of_their_target,
    boards_are_read_in_order_beside_collectives,
    a_wait_ends_at_its_deadline_and_goes_on_after_it,
)

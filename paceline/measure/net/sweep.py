"""The part of a network sweep that runs on every rank: time each operation and each pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from paceline.measure.net.figures import Pair, Row
from paceline.types import Mixing, spread

VERBS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv", "neighbor")
BUDGET = 0.25  # approximate seconds for one size
MOST = 50  # calls of one size
Clock = Callable[[], float]


def sweep(comm: Any, name: str, verbs: Sequence[str], sizes: Sequence[int], clock: Clock) -> Iterator[Row]:
    """Yield a row for each verb and size, the same on all ranks. Collective."""
    for verb in verbs:
        for nbytes in sizes:
            call, wrong = prepared(comm, verb, max(1, nbytes // 4))
            seconds = timed(comm, call, clock)
            yield Row(name, verb, nbytes, comm.size, seconds, wrong())


def timed(comm: Any, call: Callable[[], None], clock: Clock) -> float:
    """Return the seconds of one call: the mean over calls and over ranks."""
    call()  # the first one connects and touches new memory
    once = _mean(comm, _run(comm, call, clock, 1))
    count = int(min(MOST, max(1, BUDGET / max(once, 1e-9))))
    return _mean(comm, _run(comm, call, clock, count))


def _run(comm: Any, call: Callable[[], None], clock: Clock, count: int) -> float:
    comm.barrier()
    began = clock()
    for _ in range(count):
        call()
    return (clock() - began) / count


def _mean(comm: Any, seconds: float) -> float:
    rows = torch.zeros(comm.size, dtype=torch.float64)
    comm.all_gather(torch.tensor([seconds], dtype=torch.float64), rows, "seconds").wait()
    return float(rows.mean())


def prepared(comm: Any, verb: str, numel: int) -> tuple[Callable[[], None], Callable[[], int]]:
    """Return a call of the verb, and a function that counts wrong elements of its last result, over all ranks."""
    rank, size = comm.rank, comm.size
    src, dst = comm.allocate(numel, torch.float32), comm.allocate_result(numel, torch.float32)
    src.copy_(numbers(rank, numel))
    bounds = spread(numel, size)
    mine = slice(bounds[rank], bounds[rank + 1])
    before, after = (rank - 1) % size, (rank + 1) % size
    if verb == "all_reduce":
        expected, out = _total(size, numel), dst
        call = lambda: comm.all_sum(src, dst, verb).wait()  # noqa: E731
    elif verb == "reduce_scatter":
        out = torch.zeros(mine.stop - mine.start)
        expected = _total(size, numel)[mine]
        call = lambda: comm.reduce_scatter(src, out, verb).wait()  # noqa: E731
    elif verb == "all_gather":
        part = -(-numel // size)
        row, out = numbers(rank, part), torch.zeros(part * size)
        expected = torch.cat([numbers(peer, part) for peer in range(size)])
        call = lambda: comm.all_gather(row, out, verb).wait()  # noqa: E731
    elif verb == "broadcast":
        out, expected = numbers(rank, numel), numbers(0, numel)
        call = lambda: comm.broadcast(out, 0, verb).wait()  # noqa: E731
    else:
        out, expected, mixing = torch.zeros(numel), numbers(before, numel), Mixing(0.0, ((before, 1.0),), (after,))
        if size == 1:
            expected, mixing = numbers(0, numel), Mixing(1.0)
        elif verb == "neighbor":  # averaging with both neighbors of a ring
            near = sorted({before, after})
            mixing = Mixing(0.5, tuple((peer, 0.5 / len(near)) for peer in near), tuple(near))
            expected = 0.5 * numbers(rank, numel) + sum(0.5 / len(near) * numbers(peer, numel) for peer in near)
        call = lambda: comm.mix(src, out, mixing, verb).wait()  # noqa: E731

    def wrong() -> int:
        count = torch.tensor([int((out != expected).sum())], dtype=torch.int64)
        total = torch.zeros_like(count)
        comm.all_sum(count, total, "wrong numbers").wait()
        comm.release(src)
        comm.release(dst)
        return int(total)

    return call, wrong


def numbers(rank: int, numel: int) -> Tensor:
    """Return small whole numbers that differ by rank, whose sums are exact."""
    return ((torch.arange(numel) * 3 + rank) % 5 * 4).float()


def _total(size: int, numel: int) -> Tensor:
    return sum((numbers(rank, numel) for rank in range(size)), torch.zeros(numel))


def pairs(comm: Any, clock: Clock, small: int = 1024, large: int = 1 << 22) -> Iterator[Pair]:
    """Time messages that go back and forth between each pair of hosts, or of ranks on one host. Collective."""
    ends = _ends(comm)
    for first in ends:
        for second in ends:
            if first < second:
                short, long = (_one_way(comm, first, second, nbytes // 4, clock) for nbytes in (small, large))
                yield Pair(first, second, short, large / max(long - short, 1e-9))


def _ends(comm: Any) -> list[int]:
    hosts = {host: rank for rank, host in reversed(list(enumerate(comm.placement)))}
    return sorted(hosts.values()) if len(hosts) > 1 else list(range(comm.size))


def _one_way(comm: Any, first: int, second: int, numel: int, clock: Clock) -> float:
    src, out = torch.ones(numel), torch.zeros(numel)

    def there_and_back() -> None:
        for source, target in ((first, second), (second, first)):
            heard = ((source, 1.0),) if comm.rank == target else ()
            sends = (target,) if comm.rank == source else ()
            comm.mix(src, out, Mixing(0.0 if heard else 1.0, heard, sends), "a pair").wait()

    there_and_back()
    seconds = torch.zeros(1, dtype=torch.float64)
    comm.barrier()
    count = 10 if numel < 1 << 16 else 3
    began = clock()
    for _ in range(count):
        there_and_back()
    seconds[0] = (clock() - began) / count / 2
    comm.broadcast(seconds, first, "seconds of a pair").wait()
    return float(seconds)

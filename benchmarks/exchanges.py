"""One step of every exchange on one host: shm beside torch.distributed doing the same on gloo, interleaved.

What gloo does: all_reduce for exchanges that sum over all (allreduce, ps, hierarchical), batch_isend_irecv with the
receives first and then the weighted sum for neighbors and windows; and around neighbors an all_reduce inside the node
before, a broadcast after. Results are compared, but those of windows, where nobody waits for anybody: they are read
one step late here, and gloo's are of now.

    python benchmarks/exchanges.py [--ranks 2 4 8] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import hand_in, is_rank, my_task, on_ranks, show, verdict

from paceline.measure.stats.intervals import ratio_interval

MB = 1_000_000
EXCHANGES = ("allreduce", "ps", "ps(servers=1)", "hierarchical(2xN)", "neighbor(one_peer(exp2))", "neighbor(ring)")
WINDOW = "window(ring)"
AROUND = "hierarchical(neighbor(one_peer(exp2)))"
TARGET = 2.0


def as_rank() -> None:
    import os

    import torch
    import torch.distributed as dist

    from paceline.comm.connect import connect
    from paceline.comm.position import position
    from paceline.strategy import exchanges
    from paceline.train.serve import serve
    from paceline.types import Chunk, Lane, Unit, View

    task = my_task()
    torch.set_num_threads(1)
    where = position(os.environ)
    shm = connect(where, "shm")
    if where.serves:
        serve(shm)
        shm.close()
        return
    gloo = connect(position({**os.environ, "PACELINE_SERVERS": "0"}), "gloo")
    exchange = exchanges.MENU.make(task["exchange"])
    nodes = tuple(rank // 2 for rank in range(where.size)) if task["nodes"] else (0,) * where.size
    view = View(where.rank, where.size, nodes)
    numel = task["nbytes"] // 4
    channel = exchange.join(shm, view, Lane("x", needs_consensus=False, lossy_ok=False))
    src = channel.memory.allocate(numel, torch.float32)
    shared = exchange.shares_results and channel.memory.shares_results
    dst = channel.memory.allocate_result(numel, torch.float32) if shared else torch.zeros(numel)
    src.fill_(where.rank + 1.0)
    pairs = [[first, first + 1] for first in range(0, where.size, 2)] if task["nodes"] else []
    groups = [dist.new_group(pair) for pair in pairs]  # collective: every rank makes all of them
    inside = groups[where.rank // 2] if groups else None
    own, out = torch.full((numel,), where.rank + 1.0), torch.zeros(numel)

    def ours(step: int) -> None:
        channel.start(Unit(step, 0), Chunk(0, 0, numel), src, dst, None).wait()

    def theirs(step: int) -> None:
        if exchange.topology is None:
            out.copy_(own)
            dist.all_reduce(out)
        elif not task["nodes"]:
            mix(own, exchange.topology.row(where.rank, view, step), lambda peer: peer)
        else:
            out.copy_(own)
            dist.all_reduce(out, group=inside)
            out.div_(2)
            if where.rank % 2 == 0:
                row = exchange.topology.row(where.rank // 2, View(where.rank // 2, where.size // 2), step)
                mix(out.clone(), row, lambda peer: 2 * peer)
            dist.broadcast(out, where.rank // 2 * 2, group=inside)

    def mix(mine: torch.Tensor, row: Any, rank_of: Any) -> None:
        heard = [(torch.empty_like(mine), peer, weight) for peer, weight in row.sources]
        ops = [dist.P2POp(dist.irecv, part, rank_of(peer)) for part, peer, _ in heard]
        ops += [dist.P2POp(dist.isend, mine, rank_of(peer)) for peer in row.targets]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        torch.mul(mine, row.keep, out=out)
        for part, _, weight in heard:
            out.add_(part, alpha=weight)

    seconds: dict[str, list[float]] = {"shm": [], "gloo": []}
    for number in range(task["rounds"] + 1):
        for name, act in (("shm", ours), ("gloo", theirs)) if number % 2 else (("gloo", theirs), ("shm", ours)):
            shm.barrier()
            began = time.perf_counter()
            act(number)
            shm.barrier()
            seconds[name].append(time.perf_counter() - began)
    close = exchange.asynchronous or (dst - out).abs().max() <= 1e-5 * out.abs().max()
    if where.rank == 0:
        hand_in({"seconds": {name: values[1:] for name, values in seconds.items()}, "equal": bool(close)})
    gloo.close()
    shm.close()


def tasks(sizes: list[int], quick: bool) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for size in sizes:
        for text in (*EXCHANGES, AROUND, WINDOW):
            if size == 2 and text.startswith("hier"):
                continue
            for nbytes in (10 * MB,) if quick else (10 * MB, 100 * MB):
                task = {
                    "exchange": text.replace("N", str(size // 2)),
                    "nodes": text == AROUND,
                    "nbytes": nbytes,
                    "rounds": 3 if quick else max(6, 12 * 10 * MB // nbytes),
                }
                found.append((size, task))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--quick", action="store_true", help="one size, few rounds; figures, not evidence")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    from paceline.strategy import exchanges

    rows, everything = [], []
    for size, task in tasks(asked.ranks, asked.quick):
        servers = exchanges.MENU.make(task["exchange"]).servers
        found = on_ranks(__file__, size, task, servers=servers)
        ours, theirs = found["seconds"]["shm"], found["seconds"]["gloo"]
        ratio = ratio_interval(theirs, ours)
        span = f"{ratio.centre:.1f} [{ratio.low:.1f}, {ratio.high:.1f}]"
        rows.append((size, task["exchange"], task["nbytes"] // MB, median(ours), median(theirs), span))
        everything.append({"ranks": size, **task, **found, "ratio": vars(ratio)})
        show(HEAD, [shown(rows[-1])])
        assert found["equal"], f"{task['exchange']} on {size} ranks gives another result than gloo"
    print()
    show(HEAD, [shown(row) for row in rows])
    print()
    worst = min(everything, key=lambda entry: entry["ratio"]["centre"])
    mean = math.exp(sum(math.log(e["ratio"]["centre"]) for e in everything) / len(everything))
    print(f"geometric mean {mean:.1f}; the smallest is {worst['exchange']} at {worst['ranks']} ranks")
    print(verdict("times as fast as gloo, every exchange", worst["ratio"]["centre"], TARGET))
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1) + "\n")


HEAD = ("ranks", "exchange", "MB", "shm ms", "gloo ms", "times as fast")


def shown(row: tuple[Any, ...]) -> tuple[str, ...]:
    size, text, megabytes, ours, theirs, span = row
    return (str(size), text, str(megabytes), f"{ours * 1e3:.1f}", f"{theirs * 1e3:.1f}", span)


if __name__ == "__main__":
    as_rank() if is_rank() else main()

"""Sums and neighbor exchanges between the hosts of a lab: tcp and node beside gloo, interleaved in one run.

Beside every time stands its bound: a ring moves 2 (n-1)/n of a vector through every link, an exchange with one peer
moves it once; a link carries 95.6 % of its rate as TCP payload. With several ranks on a host the bound of node is that
of a ring of hosts. Ranks stand host by host; with --dealt, neighbors in rank stand on different hosts, as some
launchers place them. Ratios are medians over rounds, with a 95 % interval of that median. Needs root.

    sums of tcp from 25 MB on, one peer     at most 1.10 times their bounds
    sums of 1 KiB                           tcp at least 5 times as fast as gloo
    100 MB, two ranks on each of 4 hosts    node at least 1.05 times as fast as gloo; 2.0 times with --dealt

    python benchmarks/hosts.py [--hosts 4] [--bandwidth 1gbit] [--ranks 4] [--dealt] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from math import comb
from pathlib import Path
from statistics import median
from typing import Any

from paceline.cluster.lab.lab import read_lab

SIZES = (1024, 65_536, 1_000_000, 25_000_000, 100_000_000)
QUICK = (1024, 1_000_000)
SMALL = 65_536  # bytes; up to here a round costs little
FEW, MANY = 1, 4  # rounds of large and small messages, times --quick or not


def as_rank(task: dict[str, Any], out: str) -> None:
    import torch

    from paceline.comm.connect import connect
    from paceline.comm.position import position
    from paceline.types import Mixing

    torch.set_num_threads(1)
    if task["dealt"]:
        host, place = divmod(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]) // task["hosts"])
        os.environ["RANK"] = str(place * task["hosts"] + host)
    comms = {name: connect(position(os.environ), name) for name in task["comms"]}
    first = comms["gloo"]
    before, after = (first.rank - 1) % first.size, (first.rank + 1) % first.size
    peer = Mixing(0.5, ((before, 0.5),), (after,))
    rows = []
    for nbytes in task["sizes"]:
        for verb in ("sum", "one peer"):
            seen: dict[str, list[float]] = {name: [] for name in comms}
            taking = {name: comm for name, comm in comms.items() if verb == "sum" or name != "node"}  # peers are gloo's
            memory = {
                name: (comm.allocate(nbytes // 4, torch.float32), comm.allocate_result(nbytes // 4, torch.float32))
                for name, comm in taking.items()
            }
            own = torch.empty(nbytes // 4) if verb == "one peer" else None
            for number in range(task["rounds"] * (FEW if nbytes > SMALL else MANY) + 1):
                for name, comm in taking.items():
                    src, dst = memory[name]
                    first.barrier()
                    began = time.perf_counter()
                    work = comm.all_sum(src, dst, "a sum") if own is None else comm.mix(src, own, peer, "a peer")
                    work.wait()
                    if number:  # the first one connects
                        seen[name].append(time.perf_counter() - began)
            for name, comm in taking.items():
                for tensor in memory.pop(name):
                    comm.release(tensor)
            rows.append([verb, nbytes, {name: times for name, times in seen.items() if times}])
            if first.rank == 0:
                Path(out).write_text(json.dumps(rows))
    first.barrier()
    for comm in reversed(comms.values()):
        comm.close()


def bound(verb: str, nbytes: int, hosts: int, goodput: float, crossing: int) -> float:
    """Return the least seconds among hosts whose links carry so many bytes of payload per second.

    `crossing` is how many ranks of a host have their peer on another host.
    """
    return nbytes * (2 * (hosts - 1) / hosts if verb == "sum" else crossing) / goodput


def cell(name: str, seconds: list[float], gloo: list[float], least: float) -> str:
    """Return a comm's milliseconds, their ratio to the bound, and how many times as fast as gloo it is."""
    took = median(seconds)
    text = f"{name} {took * 1e3:.2f} ({took / least:.2f} of the bound"
    if name != "gloo":
        low, high = interval([theirs / ours for ours, theirs in zip(seconds, gloo, strict=True)])
        text += f", {median(gloo) / took:.2f}x [{low:.2f}, {high:.2f}]"
    return text + ")"


def interval(values: list[float]) -> tuple[float, float]:
    """Return the order statistics between which the median lies with at least 95 %, or all values if they are few."""
    ordered, n = sorted(values), len(values)
    k = max((k for k in range(n // 2) if 2 * sum(comb(n, j) for j in range(k + 1)) / 2**n <= 0.05), default=0)
    return ordered[k], ordered[n - 1 - k]


def main() -> None:
    from paceline.cluster.job_folder import job_folder
    from paceline.race.script import launch
    from paceline.run.run import Run

    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--hosts", type=int, default=4)
    options.add_argument("--bandwidth", default="1gbit")
    options.add_argument("--ranks", type=int, default=0, help="as many as hosts by default")
    options.add_argument("--dealt", action="store_true", help="deal ranks to hosts one by one")
    options.add_argument("--quick", action="store_true")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    text, ranks = f"lab(hosts={chosen.hosts}, bandwidth={chosen.bandwidth})", chosen.ranks or chosen.hosts
    comms = ["gloo", "tcp", *(["node"] if ranks > chosen.hosts else [])]
    if ranks % chosen.hosts:
        options.error(f"{ranks} ranks on {chosen.hosts} hosts: every host needs as many")
    task: dict[str, Any] = {"comms": comms, "hosts": chosen.hosts, "dealt": chosen.dealt}
    task |= {"sizes": QUICK if chosen.quick else SIZES, "rounds": 3 if chosen.quick else 9}
    with job_folder() as folder:
        out = folder / "hosts.json"
        words = [sys.executable, __file__, "--as-rank", json.dumps(task), str(out)]
        launch(words, run=Run(workers=ranks, lab=text), choices={})
        rows = json.loads(out.read_text())
    goodput = read_lab(text).goodput
    how = "dealt one by one" if chosen.dealt else "host by host"
    print(f"{ranks} ranks in {text}, {how}; milliseconds")
    for verb, nbytes, times in rows:
        least = bound(verb, nbytes, chosen.hosts, goodput, ranks // chosen.hosts if chosen.dealt else 1)
        cells = [cell(name, seconds, times["gloo"], least) for name, seconds in times.items()]
        print(f"{verb:8} {nbytes:>11,} B  bound {least * 1e3:8.2f}   {'   '.join(cells)}")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"lab": text, "ranks": ranks, "dealt": chosen.dealt, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(json.loads(sys.argv[2]), sys.argv[3])
    else:
        main()

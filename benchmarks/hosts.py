"""Sums and neighbor exchanges between the hosts of a lab: tcp and node beside gloo, interleaved in one run.

Beside every time stands its bound: a ring moves 2 (n-1)/n of a vector through every link, an exchange with one peer
moves it once; a link carries 95.6 % of its rate as TCP payload. With several ranks on a host the bound of node is that
of a ring of hosts. Ranks stand host by host; with --dealt, neighbors in rank stand on different hosts, as some
launchers place them. Needs root.

    python benchmarks/hosts.py [--hosts 4] [--bandwidth 1gbit] [--ranks 4] [--dealt] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from paceline.cluster.lab.lab import read_lab

SIZES = (1024, 65_536, 1_000_000, 25_000_000, 100_000_000)
QUICK = (1024, 1_000_000)


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
            memory = {
                name: (comm.allocate(nbytes // 4, torch.float32), comm.allocate_result(nbytes // 4, torch.float32))
                for name, comm in comms.items()
            }
            for number in range(task["rounds"] + 1):
                for name, comm in comms.items():
                    if verb == "one peer" and name == "node":
                        continue  # it is gloo's
                    src, dst = memory[name]
                    own = torch.empty_like(src) if verb == "one peer" else dst
                    first.barrier()
                    began = time.perf_counter()
                    work = comm.all_sum(src, own, "a sum") if verb == "sum" else comm.mix(src, own, peer, "a peer")
                    work.wait()
                    if number:  # the first one connects
                        seen[name].append(time.perf_counter() - began)
            rows.append([verb, nbytes, {name: median(times) for name, times in seen.items() if times}])
    if first.rank == 0:
        Path(out).write_text(json.dumps(rows))
    first.barrier()
    for comm in reversed(comms.values()):
        comm.close()


def bound(verb: str, nbytes: int, parts: int, goodput: float) -> float:
    """Return the least seconds among so many links, each with so many bytes of payload per second."""
    moved = nbytes * (2 * (parts - 1) / parts if verb == "sum" else 1)
    return moved / goodput


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
    task |= {"sizes": QUICK if chosen.quick else SIZES, "rounds": 3 if chosen.quick else 7}
    with job_folder() as folder:
        out = folder / "hosts.json"
        words = [sys.executable, __file__, "--as-rank", json.dumps(task), str(out)]
        launch(words, run=Run(workers=ranks, lab=text), choices={})
        rows = json.loads(out.read_text())
    goodput = read_lab(text).goodput
    how = "dealt one by one" if chosen.dealt else "host by host"
    print(f"{ranks} ranks in {text}, {how}; ms, and how many times as fast as gloo")
    for verb, nbytes, times in rows:
        parts = chosen.hosts if verb == "sum" else ranks
        least = bound(verb, nbytes, parts, goodput)
        cells = [f"{name} {seconds * 1e3:9.2f} ({times['gloo'] / seconds:4.2f}x)" for name, seconds in times.items()]
        print(f"{verb:9} {nbytes:>11,} B   {'   '.join(cells)}   bound {least * 1e3:9.2f}")
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"lab": text, "ranks": ranks, "dealt": chosen.dealt, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(json.loads(sys.argv[2]), sys.argv[3])
    else:
        main()

"""All-reduce on one host: shm beside gloo and OpenMPI, in one run, interleaved.

`shm` adds memory that it allocated (as training does), `shm any` adds any tensor of the caller. OpenMPI comes
through mpi4py (pip install 'paceline[peers]') and adds in place; it spins while it waits, shm sleeps.
algbw is bytes / seconds.

    python benchmarks/allreduce.py [--ranks 2 4] [--quick] [--json F]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import RANK_WORD, is_rank, show, verdict

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 25 * MIB, 100 * MIB)
ROUNDS = 7


def calls_of(nbytes: int) -> int:
    return max(3, min(200, 20 * MIB // nbytes))


def as_rank() -> None:
    """One process is a rank of all peers at once: mpirun starts it, so OpenMPI is always there."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()

    import torch

    torch.set_num_threads(1)
    from paceline.comm.connect import connect
    from paceline.comm.position import Position

    where = Position(rank, size, rank, Path(os.environ["PACELINE_STORE"]))
    shm, gloo = connect(where, "shm"), connect(where, "gloo")
    found: list[dict[str, Any]] = []
    for nbytes in json.loads(os.environ["BENCH_SIZES"]):
        numel = nbytes // 4
        src, dst = shm.allocate(numel, torch.float32), shm.allocate_result(numel, torch.float32)
        src.fill_(rank + 1)
        own, out = torch.full((numel,), rank + 1.0), torch.zeros(numel)
        mpi_in, mpi_out = own.numpy(), torch.zeros(numel).numpy()
        calls = {
            "shm": lambda: shm.all_sum(src, dst).wait(),  # noqa: B023
            "shm any": lambda: shm.all_sum(own, out).wait(),  # noqa: B023
            "gloo": lambda: gloo.all_sum(own, out).wait(),  # noqa: B023
            "openmpi": lambda: world.Allreduce(mpi_in, mpi_out),  # noqa: B023
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        wrong = 0
        for _ in range(int(os.environ["BENCH_ROUNDS"])):
            for name, call in calls.items():
                count = calls_of(nbytes) // (5 if name == "gloo" else 1) or 1
                call()
                shm.barrier()
                began = time.perf_counter()
                for _ in range(count):
                    call()
                shm.barrier()
                seconds[name].append((time.perf_counter() - began) / count)
        expected = size * (size + 1) / 2
        for result in (dst, out, torch.from_numpy(mpi_out)):
            wrong += int((result != expected).sum())
        found.append({"nbytes": nbytes, "wrong": wrong, "seconds": seconds})
    if rank == 0:
        Path(os.environ["BENCH_OUT"]).write_text(json.dumps(found))
    shm.close()
    gloo.close()


def measure(size: int, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    program = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    if program is None:
        sys.exit("mpirun is missing. try: pip install 'paceline[peers]'")
    # Open MPI leaves its segments in /dev/shm if a rank does not end by itself; in a folder of ours they are removed.
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(dir="/dev/shm") as segments:
        store, out = Path(place) / "store", Path(place) / "found.json"
        store.mkdir(mode=0o700)
        environ = {
            **os.environ,
            "PACELINE_STORE": str(store),
            "BENCH_OUT": str(out),
            "BENCH_SIZES": json.dumps(sizes),
            "BENCH_ROUNDS": str(rounds),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        flags = ["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,sm", "-n", str(size)]
        flags += ["--mca", "btl_sm_backing_directory", segments]
        subprocess.run([program, *flags, sys.executable, __file__, RANK_WORD], env=environ, check=True, timeout=900)
        return list(json.loads(out.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds; figures, not evidence")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    everything = {}
    for size in asked.ranks:
        sizes = [KIB, 4 * MIB] if asked.quick else list(SIZES)
        found = measure(size, sizes, 2 if asked.quick else ROUNDS)
        everything[size] = found
        rows = [row_of(entry) for entry in found]
        print(f"\n{size} ranks, median of rounds; time per call, and how many times faster shm is")
        show(("bytes", "shm us", "any us", "gloo us", "mpi us", "algbw GB/s", "of gloo", "of mpi", "wrong"), rows)
        print()
        for line in targets(size, found):
            print(line)
    if asked.json:
        asked.json.write_text(json.dumps(everything, indent=1) + "\n")


def best(entry: dict[str, Any]) -> float:
    """What a caller gets: allocated memory for large sums; below a page it makes no difference which."""
    return min(median(entry["seconds"]["shm"]), median(entry["seconds"]["shm any"]))


def row_of(entry: dict[str, Any]) -> tuple[str, ...]:
    middle = {name: median(values) for name, values in entry["seconds"].items()}
    return (
        f"{entry['nbytes']:,}",
        *(f"{middle[name] * 1e6:,.0f}" for name in ("shm", "shm any", "gloo", "openmpi")),
        f"{entry['nbytes'] / middle['shm'] / 1e9:.2f}",
        f"{middle['gloo'] / best(entry):.1f}",
        f"{middle['openmpi'] / best(entry):.2f}",
        str(entry["wrong"]),
    )


def targets(size: int, found: list[dict[str, Any]]) -> list[str]:
    def worst(peer: str, least: int, most: int = 1 << 40) -> float:
        chosen = [e for e in found if least <= e["nbytes"] <= most]
        return min(median(e["seconds"][peer]) / best(e) for e in chosen)

    if size == 2:
        return [
            verdict("latency at 1 KiB, times lower than gloo", worst("gloo", KIB, KIB), 15),
            verdict("bandwidth from 4 MiB, times gloo", worst("gloo", 4 * MIB), 5),
            verdict("bandwidth from 4 MiB, times OpenMPI", worst("openmpi", 4 * MIB), 2),
        ]
    return [
        verdict("from 256 KiB, times gloo", worst("gloo", 256 * KIB), 1),
        verdict("from 256 KiB, times OpenMPI", worst("openmpi", 256 * KIB), 1),
    ]


if __name__ == "__main__":
    as_rank() if is_rank() else main()

"""Final accuracy of strategies on Fashion-MNIST: every contender with several seeds, against all-reduce.

    python benchmarks/accuracy.py FOLDER            about three hours on two cores; a second call goes on where it ended
    python benchmarks/accuracy.py FOLDER --quick    one epoch, two seeds, to see that it works

FOLDER gets one record per run, and table.md at the end. Differences are paired by seed, with a 95 % t interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

SOURCE = "idx(/usr/share/datasets/fashion-mnist)"
# two-sided 95 % quantiles of Student's t by degrees of freedom
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
COSINE = ("--lr-schedule", "cosine(warmup=1)")


@dataclass(frozen=True)
class Row:
    """One line of the table; `beside` is the row that it is compared with."""

    name: str
    words: tuple[str, ...]
    beside: str = "allreduce, 2 workers"
    tricks: bool = False


def rows() -> list[Row]:
    neighbor = ("-np", "4", "--strategy", "neighbor_allreduce")
    made = [Row("allreduce, 2 workers", ("-np", "2", *COSINE))]
    made += [Row(f"allreduce, {n} workers", ("-np", str(n), *COSINE)) for n in (1, 4)]
    made += [
        Row("neighbor_allreduce, 4 workers", (*neighbor, *COSINE)),
        Row(
            "hierarchical_neighbor_allreduce, 4 workers",
            ("-np", "4", "--nodes", "2x2", "--strategy", "hierarchical_neighbor_allreduce", *COSINE),
        ),
        Row("parameter_server, 2 workers", ("-np", "2", "--strategy", "parameter_server", *COSINE)),
        Row("local_sgd, 2 workers", ("-np", "2", "--strategy", "local_sgd", *COSINE)),
        Row("topk 1 % with feedback, 2 workers", ("-np", "2", "--compress", "feedback(topk(ratio=0.01))", *COSINE)),
    ]
    base = "neighbor_allreduce, 4 workers"
    for name, words in {
        "trick: smaller warm-up rate": (*neighbor, "--lr-schedule", "cosine(warmup=1, first=0.1)"),
        "trick: global average every 50 steps": (
            *("-np", "4", "--rule", "awc(global_every=50)", "--exchange", "neighbor(one_peer(exp2))", *COSINE),
        ),
        "trick: atc instead of awc": (
            *("-np", "4", "--rule", "atc", "--exchange", "neighbor(one_peer(exp2))", *COSINE),
        ),
        "trick: faster decay": (*neighbor, "--lr-schedule", "steps(warmup=1, at=4/6/8, factor=0.2)"),
    }.items():
        made.append(Row(name, tuple(words), base, tricks=True))
    return made


def path_of(folder: Path, row: Row, seed: int) -> Path:
    name = "".join(letter if letter.isalnum() else "-" for letter in row.name)
    return folder / f"{name}-{seed}.json"


def train(row: Row, seed: int, path: Path, epochs: int) -> None:
    words = [
        *(sys.executable, "-m", "paceline", "run", *row.words, "--model", "small_cnn", "--source", SOURCE),
        *("--epochs", str(epochs), "--global-batch", "128", "--optimizer", "sgd(lr=0.05, momentum=0.9)"),
        *("--seed", str(seed), "--runs", str(path.parent / "runs"), "--json", str(path)),
    ]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{row.name}, seed {seed} failed:\n{done.stdout[-2000:]}")


def accuracies(folder: Path, row: Row, seeds: int) -> list[float]:
    paths = [path_of(folder, row, seed) for seed in range(seeds)]
    return [json.loads(path.read_text())["accuracy"][-1]["value"] for path in paths]


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval."""
    if len(values) < 2:
        return fmean(values), float("nan")
    return fmean(values), T95[len(values) - 1] * stdev(values) / len(values) ** 0.5


def table(folder: Path, seeds: dict[str, int]) -> str:
    lines = ["| contender | top-1 | seeds | difference to | points (95 %) |", "|---|---|---|---|---|"]
    every = {row.name: row for row in rows()}
    for row in every.values():
        mean, half = interval(accuracies(folder, row, seeds[row.name]))
        line = f"| {row.name} | {100 * mean:.2f} +- {100 * half:.2f} | {seeds[row.name]} |"
        if row.name == row.beside:
            lines.append(f"{line} | |")
            continue
        count = min(seeds[row.name], seeds[row.beside])
        pairs = zip(accuracies(folder, row, count), accuracies(folder, every[row.beside], count), strict=True)
        mean, half = interval([100 * (a - b) for a, b in pairs])
        lines.append(f"{line} {row.beside} | {mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f}) |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    epochs, many, few = (1, 2, 2) if options.quick else (options.epochs, 5, 3)
    options.folder.mkdir(parents=True, exist_ok=True)
    seeds = {row.name: few if row.tricks else many for row in rows()}
    todo = [(row, seed) for seed in range(many) for row in rows() if seed < seeds[row.name]]
    left = [(row, seed) for row, seed in todo if not path_of(options.folder, row, seed).exists()]
    print(f"{len(todo)} runs of {epochs} epochs, {len(todo) - len(left)} of them made already", flush=True)
    began = time.perf_counter()
    for number, (row, seed) in enumerate(left):
        train(row, seed, path_of(options.folder, row, seed), epochs)
        each = (time.perf_counter() - began) / (number + 1)
        minutes = each * (len(left) - number - 1) / 60
        print(f"{row.name}, seed {seed}: done; {minutes:.0f} minutes left", flush=True)
    text = table(options.folder, seeds)
    (options.folder / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

"""Final accuracy of strategies on Fashion-MNIST: every contender with several seeds, against all-reduce.

    python benchmarks/accuracy.py                   train what has no record yet, then write the table
    python benchmarks/accuracy.py --at-most 1       train one contender with one seed, then write the table
    python benchmarks/accuracy.py --at-most 0       write the table from the records that exist
    python benchmarks/accuracy.py --quick FOLDER    one epoch, two seeds; writes FOLDER/table.md and nothing else

Each training leaves one record in docs/records/accuracy (or FOLDER), without layer times and events; a second call
goes on where the first one ended. A record counts only if its run is the one that its row describes. The table in
docs/howto/accuracy.md is made from the records alone. Differences are paired by seed, with a 95 % t interval.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paceline.measure.record.record import Record, read
from paceline.measure.stats.intervals import Interval, mean_interval
from paceline.run.run import Run

HERE = Path(__file__).parent.parent
RECORDS, PAGE = HERE / "docs" / "records" / "accuracy", HERE / "docs" / "howto" / "accuracy.md"
BEGIN, END = "## What strategies reach\n\n", "\n## Checkpoints\n"
EPOCHS, SEEDS, FEW = 4, 5, 3  # the published tricks have few seeds
LEVEL = 1.0  # points: a contender is level if the whole interval of its difference is smaller
FIRST = "allreduce, 2 workers"
WARMUP = 0.5  # epochs
WARM = f"warmup={WARMUP:g}, first=0.25"  # from the rate of one of four workers to that of all, as published
WORK = {
    "model": "small_cnn",
    "source": "idx(/usr/share/datasets/fashion-mnist)",
    "global_batch": 128,
    "optimizer": "sgd(lr=0.1, momentum=0.9)",
    "lr_schedule": f"cosine({WARM})",
    # torch pools contiguous images one number at a time: a step of small_cnn takes 1.7 times as long with them
    "memory_format": "channels_last",
}


@dataclass(frozen=True)
class Row:
    """One line of the table: a run, the number of its seeds, and the line that it is compared with."""

    name: str
    run: Run
    beside: str = FIRST
    seeds: int = SEEDS

    def seeded(self, seed: int) -> Run:
        return self.run.with_(seed=seed)


def rows(epochs: int = EPOCHS) -> list[Row]:
    def run(workers: int, **changes: object) -> Run:
        return Run.model_validate({**WORK, "workers": workers, "epochs": epochs, **changes})

    neighbor = {"strategy": "neighbor_allreduce"}
    one_peer = {"exchange": "neighbor(one_peer(exp2))"}
    levels = {"strategy": "hierarchical_neighbor_allreduce", "nodes": "2x2"}
    base, slow = "neighbor_allreduce, 4 workers", "neighbor_allreduce, 4 workers, decay after 30, 60, 80 of 90"
    return [
        Row(FIRST, run(2)),
        Row("allreduce, 1 worker", run(1)),
        Row("allreduce, 4 workers", run(4)),
        Row(base, run(4, **neighbor)),
        Row("hierarchical_neighbor_allreduce, 4 workers", run(4, **levels)),
        Row("parameter_server, 2 workers", run(2, strategy="parameter_server")),
        Row("local_sgd, 2 workers", run(2, strategy="local_sgd")),
        Row("topk 1 % with feedback, 2 workers", run(2, compressor="feedback(topk(ratio=0.01))")),
        Row("trick: warm-up from 0", run(4, **neighbor, lr_schedule=f"cosine(warmup={WARMUP:g})"), base, FEW),
        Row("trick: global average every 50 steps", run(4, rule="awc(global_every=50)", **one_peer), base, FEW),
        Row("trick: atc instead of awc", run(4, rule="atc", **one_peer), base, FEW),
        Row(slow, run(4, **neighbor, lr_schedule=decay(epochs, 30, 60, 80)), base, FEW),
        Row("trick: decay after 25, 50, 75", run(4, **neighbor, lr_schedule=decay(epochs, 25, 50, 75)), slow, FEW),
    ]


def decay(epochs: int, *of_90: int) -> str:
    """Return the published schedule of ImageNet, which has 90 epochs, scaled to a number of epochs."""
    at = "/".join(f"{epochs * epoch / 90:.3f}" for epoch in of_90)
    return f"steps({WARM}, at={at})"


def path_of(folder: Path, row: Row, seed: int) -> Path:
    return folder / f"{re.sub('[^a-z0-9]+', '-', row.name)}-{seed}.json"


def found(folder: Path, row: Row, seed: int) -> Record | None:
    """Return the record of a row with one seed; one of another run, or of one that failed, is refused."""
    path = path_of(folder, row, seed)
    if not path.exists():
        return None
    record = read(path)
    if record.run != row.seeded(seed) or not record.accuracy:
        raise SystemExit(f"{path} is not a record of {row.seeded(seed).text}. try: remove it, and train again")
    return record


def train(run: Run, path: Path) -> None:
    """Train once and keep the record."""
    with tempfile.TemporaryDirectory(prefix="paceline-accuracy-") as scratch:
        kept = Path(scratch) / "record.json"
        words = [sys.executable, "-m", *shlex.split(run.text), "--runs", scratch, "--json", str(kept)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise SystemExit(f"{run.text} failed:\n{done.stdout[-2000:]}")
        slim = slimmed(read(kept))
        part = path.with_suffix(".part")
        part.write_text(json.dumps(json.loads(slim.to_json())) + "\n")  # on one line
        part.replace(path)


def slimmed(record: Record) -> Record:
    """Drop layer times, events and seconds of single steps; keep what `show` prints, and losses with four digits."""
    series = {name: value for name, value in record.series.items() if name != "seconds"}
    losses = [round(loss, 4) for loss in record.loss]
    return record.model_copy(update={"profile": None, "events": None, "series": series, "loss": losses})


# the table ----------------------------------------------------------------------------------------------

Scores = Mapping[str, Mapping[int, float]]  # row -> seed -> accuracy in points


def scores_of(folder: Path, made: Sequence[Row]) -> Scores:
    return {row.name: dict(_scores(folder, row)) for row in made}


def _scores(folder: Path, row: Row) -> Iterator[tuple[int, float]]:
    for seed in range(row.seeds):
        record = found(folder, row, seed)
        if record is not None:
            yield seed, 100 * record.accuracy[-1]["value"]


def table(made: Sequence[Row], scores: Scores) -> list[str]:
    """Return the lines of the table. A row says how many of its seeds are trained, and a verdict needs all of them."""
    lines = ["| contender | top-1, % | seeds | difference to | points | |", "|---|---|---|---|---|---|"]
    for row in made:
        mine, other = scores[row.name], scores[row.beside]
        ended = f"{len(mine)} of {row.seeds}"
        first = f"| {row.name} | {_spoken(list(mine.values()), '.2f')} | {ended} |"
        if row.name == row.beside:
            lines.append(f"{first} | | {_whole(mine, row, 'the row to compare with')} |")
            continue
        pairs = [mine[seed] - other[seed] for seed in sorted(mine.keys() & other.keys())]
        verdict = _whole(mine, row, _verdict(mean_interval(pairs)) if len(pairs) == row.seeds else "")
        lines.append(f"{first} {row.beside} | {_spoken(pairs, '+.2f')} | {verdict} |")
    return lines


def _whole(mine: Mapping[int, float], row: Row, verdict: str) -> str:
    """Return a verdict, or that some seeds of the row, or of the row beside it, are not trained yet."""
    return verdict if verdict and len(mine) == row.seeds else "not finished"


def _spoken(values: Sequence[float], style: str) -> str:
    """Format a mean with its interval; a single value has none."""
    if not values:
        return "-"
    interval = mean_interval(values)
    if interval.low is None or interval.high is None:
        return f"{interval.centre:{style}}"
    return f"{interval.centre:{style}} ({interval.low:{style}} to {interval.high:{style}})"


def _verdict(interval: Interval) -> str:
    """Return whether a difference is level, certain, or neither."""
    low, high = interval.low, interval.high
    assert low is not None
    assert high is not None
    if low > -LEVEL and high < LEVEL:
        return f"within {LEVEL:g} point"
    if low > 0 or high < 0:
        return "higher" if low > 0 else "lower"
    return "not decided"


def section(made: Sequence[Row], scores: Scores) -> str:
    """Return the text between the headings of the page."""
    run, ended = made[0].run, sum(map(len, scores.values()))
    total = sum(row.seeds for row in made)
    text = (
        f"`make accuracy` trains {total} times: `{run.model}` on Fashion-MNIST for {run.epochs} epochs, global batch "
        f"{run.global_batch}, `{run.optimizer}`, `{run.lr_schedule}`, {run.memory_format}. {ended} of {total} "
        "trainings are finished; their records are in [docs/records/accuracy](../records/accuracy), and this table is "
        "made from them. Top-1 is that of the last epoch on all 10,000 test images. Differences are paired by seed; "
        "intervals are Student's t with 95 %. A row whose seeds are not all trained has no verdict."
    )
    return "\n".join([*_folded(text), "", *table(made, scores)]) + "\n"


def _folded(text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def replaced(text: str, new: str) -> str:
    """Return the page with this section."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    return re.sub(pattern, lambda _: BEGIN + new + END, text, flags=re.S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=RECORDS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--at-most", type=int, metavar="N", help="train at most N times")
    options = parser.parse_args()
    if options.quick and options.folder == RECORDS:
        parser.error("--quick needs a FOLDER: its records do not belong to the table")
    options.folder.mkdir(parents=True, exist_ok=True)
    made = [Row(row.name, row.run, row.beside, 2) for row in rows(1)] if options.quick else rows()
    scores = scores_of(options.folder, made)
    # seed after seed, so that every row has something to show early
    todo = [(row, seed) for seed in range(SEEDS) for row in made if seed < row.seeds and seed not in scores[row.name]]
    print(f"{len(todo)} of {sum(row.seeds for row in made)} trainings are left", flush=True)
    began = time.perf_counter()
    for number, (row, seed) in enumerate(todo[: options.at_most]):
        train(row.seeded(seed), path_of(options.folder, row, seed))
        each = (time.perf_counter() - began) / (number + 1)
        minutes = each * (len(todo) - number - 1) / 60
        print(f"{row.name}, seed {seed}: {each:.0f} s; about {minutes:.0f} minutes left", flush=True)
    text = section(made, scores_of(options.folder, made))
    print(text)
    if options.folder == RECORDS:
        PAGE.write_text(replaced(PAGE.read_text(), text))
    else:
        (options.folder / "table.md").write_text(text)


if __name__ == "__main__":
    main()

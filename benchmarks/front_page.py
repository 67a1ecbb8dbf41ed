"""Make the race at the top of README.md: race on this machine, keep the records, write the result into its section.

    python benchmarks/front_page.py                 twelve starts of each contender
    python benchmarks/front_page.py --quick         about two minutes; shows the block and changes nothing
    python benchmarks/front_page.py --from FOLDER   use the records of a race that was run before

Records go to docs/records/front-page/, without their profiles and events. The script ends with code 1, and changes
nothing, if the race has no winner.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from paceline.measure.record.record import Record
from paceline.measure.record.store import open_store
from paceline.race.results.fields import Field, fields_of
from paceline.race.results.verdict import verdict
from paceline.run.reference import DDP

HERE = Path(__file__).parent.parent
README, RECORDS = HERE / "README.md", HERE / "docs" / "records" / "front-page"
BEGIN, END = "## A race on two cores\n\n", "\n**Why not just torchrun and DDP?**"
FROM = "Made by `python benchmarks/front_page.py`, from the records in [docs/records](docs/records/front-page):"
RACE = ["--strategies", "allreduce,wfbp,horovod", "--model", "mobilenet_v2", "-np", "2", "--rounds", "12"]


def block(records: Sequence[Record]) -> list[str]:
    """The lines of the result: the work, one line per contender, and the verdict."""
    field = _largest(fields_of(records))
    workers = field.worlds[-1]
    run, standings = field.at(workers)[0].first.run, sorted(field.at(workers), key=lambda one: -one.rate.centre)
    ddp = field.reference(DDP, standings[0])
    starts = max(len(standing.records) for standing in standings)
    lines = [f"{run.model}, batch {run.per_worker} per worker, {workers} workers, {starts} fresh starts of each"]
    for standing in standings:
        ratio = "" if ddp is None or standing is ddp else f"   {100 * standing.against(ddp).centre:.0f} % of ddp"
        lines.append(f"{standing.name:12} {standing.rate.centre:8.1f} {standing.first.unit}/s{ratio}")
    return [*lines, *_folded(verdict(field).headline)]


def _largest(fields: Sequence[Field]) -> Field:
    return max(fields, key=lambda field: sum(len(standing.records) for standing in field.standings))


def _folded(text: str) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(text, 100)


def has_winner(records: Sequence[Record]) -> bool:
    return verdict(_largest(fields_of(records))).winner is not None


def replaced(text: str, lines: Sequence[str]) -> str:
    """The README with these lines in the section about a race."""
    new = f"{BEGIN}{FROM}\n\n```text\n" + "\n".join(lines) + f"\n```\n{END}"
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: new, text, flags=re.S)


def _race(folder: Path, quick: bool) -> None:
    words = ["--quick"] if quick else RACE
    subprocess.run([sys.executable, "-m", "paceline", "race", *words, "--runs", str(folder)], check=True)


def _keep(records: Sequence[Record]) -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    for old in RECORDS.glob("*.json"):
        old.unlink()
    for record in records:
        slim = record.model_copy(update={"profile": None, "events": None})
        (RECORDS / f"{record.id}.json").write_text(slim.to_json())


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--from", dest="folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        if options.folder is None:
            _race(folder, options.quick)
        records = [stored.record for stored in open_store([folder]).records]
    lines = block(records)
    print("\n".join(lines))
    if options.quick:
        return 0
    if not has_winner(records):
        print("no winner: README.md stays as it is", file=sys.stderr)
        return 1
    _keep(records)
    README.write_text(replaced(README.read_text(), lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

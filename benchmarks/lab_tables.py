"""Write the results of `paceline reproduce bluefog` and `dlaas` in labs into docs/howto/reproduce.md.

    python benchmarks/lab_tables.py                 from docs/records/labs/
    python benchmarks/lab_tables.py --from FOLDER   from the records in this folder, which are kept in short form first

docs/records/labs/NAME.json is what `paceline reproduce NAME --table TEXT --json FILE` writes: figures with intervals,
and the ids of their records.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
PAGE, RECORDS = HERE / "docs" / "howto" / "reproduce.md", HERE / "docs" / "records" / "labs"
TABLES = {"bluefog": "in a box", "dlaas": "vxlan"}
BEGIN = "## What labs have shown\n\n"
FROM = (
    "Made by `python benchmarks/lab_tables.py` from [docs/records/labs](../records/labs), with 95 % intervals over "
    "fresh starts.\n"
)
SHARES = "Share of the rate of `limit` in the same start, resnet50 replayed, {lab}, {starts} starts:\n"


def lines_of(contents: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the section after its title: a table for each published benchmark."""
    yield FROM
    if "bluefog" in contents:
        yield from _bluefog(contents["bluefog"])
        yield ""
    if "dlaas" in contents:
        yield from _dlaas(contents["dlaas"])


def _bluefog(content: dict[str, Any]) -> Iterator[str]:
    sheets = content["sheets"]
    cells = [{cell["name"]: cell for cell in sheet["cells"]} for sheet in sheets]
    steps = [sheet["title"].partition("steps of ")[2].partition(":")[0] for sheet in sheets]
    yield _head("bluefog", content)
    yield "| strategy | published | " + " | ".join(f"steps of {step} | cores busy" for step in steps) + " |"
    yield "|---" * (2 + 2 * len(steps)) + "|"
    for name, first in cells[0].items():
        values = (f"{_ratio(column[name])} | {_figure(column[name], 'cores busy', '{:.2f}')}" for column in cells)
        published = [column[name]["published"]["ratio"] for column in cells]
        there = next((f"{value:.2f}" for value in published if value is not None), "")
        yield f"| {first['name']} | {there} | " + " | ".join(values) + " |"


def _dlaas(content: dict[str, Any]) -> Iterator[str]:
    [sheet] = content["sheets"]
    yield _head("dlaas", content)
    yield "| network | published | mg_wfbp | TCP, MB/s | all-reduce of few bytes, ms | cores busy |"
    yield "|---|---|---|---|---|---|"
    for cell in sheet["cells"]:
        if cell["name"].startswith("limit"):
            continue
        figures = [("MB/s", "{:.1f}"), ("latency ms", "{:.2f}"), ("cores busy", "{:.2f}")]
        values = " | ".join(_figure(cell, name, form) for name, form in figures)
        yield f"| {cell['name']} | {cell['published']['ratio']:.2f} | {_ratio(cell)} | {values} |"


def _head(name: str, content: dict[str, Any]) -> str:
    measured = [cell for sheet in content["sheets"] for cell in sheet["cells"]]
    starts = min(cell["ratio"]["starts"] if cell["ratio"] else 0 for cell in measured)
    lab = measured[0]["run"].partition("--lab '")[2].partition("'")[0]
    place = f"{lab.partition(', overlay')[0].removesuffix(')')})"
    return f"`paceline reproduce {name}`. " + SHARES.format(lab=f"`{place}`", starts=starts)


def _ratio(cell: dict[str, Any]) -> str:
    ratio = cell["ratio"]
    if ratio is None:
        return "empty"
    low, high = ratio["low"], ratio["high"]
    return f"{ratio['centre']:.3f}" + (f" [{low:.3f}, {high:.3f}]" if low is not None and low != high else "")


def _figure(cell: dict[str, Any], name: str, form: str) -> str:
    found = [figure["here"] for figure in cell["figures"] if figure["name"] == name]
    return form.format(found[0]) if found and found[0] is not None else ""


def kept() -> dict[str, dict[str, Any]]:
    """Return the contents of docs/records/labs by the name of the published benchmark."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}


def replaced(text: str, contents: dict[str, dict[str, Any]]) -> str:
    """Return the page with this section at its end."""
    before = text.partition(BEGIN)[0].rstrip("\n")
    return f"{before}\n\n{BEGIN}" + "\n".join(lines_of(contents)).rstrip("\n") + "\n"


def _keep(folder: Path) -> None:
    RECORDS.mkdir(parents=True, exist_ok=True)
    for name, table in TABLES.items():
        path = RECORDS / f"{name}.json"
        words = ["reproduce", name, "--table", table, "--runs", str(folder), "--json", str(path)]
        subprocess.run([sys.executable, "-m", "paceline", *words], check=True, stdout=subprocess.DEVNULL)
        content = json.loads(path.read_text())
        path.write_text(json.dumps({key: content[key] for key in ("name", "sheets")}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--from", dest="folder", type=Path)
    options = parser.parse_args()
    if options.folder is not None:
        _keep(options.folder)
    PAGE.write_text(replaced(PAGE.read_text(), kept()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""paceline report: write records as one HTML page that works offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.listing import name_skipped
from paceline.cli.show import size
from paceline.measure.record.record import check_folder, check_writable


@app.command()
def report(
    records: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUNS or ID]...", help="Folders, files or ids of records. [default: --runs]"),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="HTML file to write.")] = Path("report.html"),
    charts: Annotated[
        Path | None, typer.Option("--charts", help="Also write every chart to this folder, as PNG and SVG.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Heading of the page.")] = "paceline report",
    runs: o.Runs = Path("runs"),
) -> None:
    """Write one HTML page with verdict, charts, tables and commands; it works offline."""
    from paceline.report.report import gather
    from paceline.report.report import report as work

    check_writable(out, "--out")
    if charts is not None:
        check_folder(charts, "--charts")
    stored, skipped = gather(records or [], runs)
    path = work(stored, out, title=title, skipped=skipped, charts=charts)
    name_skipped(skipped)
    print(f"{len(stored)} record(s): {path} ({size(path.stat().st_size)})")
    if charts is not None:
        print(f"charts: {charts}")

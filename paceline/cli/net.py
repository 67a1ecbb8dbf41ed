"""paceline net: measure collectives and links between ranks."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import table
from paceline.cluster.job_folder import job_folder
from paceline.comm.kinds import kind_of
from paceline.errors import WrongCommand
from paceline.measure.net.figures import Pair, Row, fit_rows, parse_size, sizes_between, slow_pairs
from paceline.measure.record.record import check_writable, write
from paceline.run.run import Run
from paceline.types import Link

VERBS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv", "neighbor")


@app.command()
def net(
    workers: Annotated[int, typer.Option("-np", "--workers", min=1, help="Number of ranks.")] = 2,
    comm: Annotated[str, typer.Option("--comm", help="Comms to compare, such as shm,tcp,gloo; all by default.")] = "",
    verbs: Annotated[
        str,
        typer.Option(
            "--verbs", help=f"Operations to measure, separated by commas: {', '.join(VERBS)}. All by default."
        ),
    ] = "",
    least: Annotated[str, typer.Option("-b", "--begin", help="Size of the smallest message, such as 1K.")] = "1K",
    most: Annotated[
        str, typer.Option("-e", "--end", help="Size of the largest message; 128M is 134,217,728 bytes.")
    ] = "4M",
    factor: Annotated[int, typer.Option("-f", "--factor", help="Each size is this many times the one before.")] = 4,
    lab: Annotated[str | None, typer.Option("--lab", help="Measure inside a virtual cluster (needs root).")] = None,
    buffer: Annotated[
        int,
        typer.Option("--socket-buffer", min=0, help="Bytes of each socket buffer of tcp; with 0 the kernel chooses."),
    ] = 0,
    link: Annotated[Path | None, typer.Option("--link", help="Write latency and bandwidth to this file.")] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Plot bandwidth by message size, and for each pair of ranks, in this SVG file."),
    ] = None,
    json: o.JsonFile = None,
) -> None:
    """Measure collectives between ranks at several sizes, and the link between every two hosts.

    The columns are those of nccl-tests. Latency and bandwidth of each comm are fitted to the times of all sizes.
    """
    for path in (link, plot, json):
        if path is not None:
            check_writable(path)
    chosen = _words(verbs, VERBS, "--verbs")
    sizes = sizes_between(parse_size(least), parse_size(most), factor)
    run = Run(workers=workers, lab=lab)
    results = [_measure(run, name, chosen, sizes, buffer, first=k == 0) for k, name in enumerate(_comms(comm, lab))]
    rows = [Row(**row) for one in results for row in one["rows"]]
    pairs = [Pair(**pair) for pair in results[0]["pairs"]]
    links = _print(rows, pairs)
    if link is not None:
        write(link, jsons.dumps(_link_file(links, pairs), indent=1) + "\n")
    if json is not None:
        write(json, jsons.dumps({"rows": [_figures(row) for row in rows], **_link_file(links, pairs)}, indent=1) + "\n")
    if plot is not None:
        from paceline.report.net import draw

        write(plot, draw(rows, pairs))
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


def _words(text: str, known: Sequence[str], flag: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()] or list(known)
    for word in words:
        if word not in known:
            raise WrongCommand(f"{flag} {word}", why=f"it is one of {', '.join(known)}")
    return words


def _comms(text: str, lab: str | None) -> list[str]:
    """Return the comms to measure; settings of tcp may contain commas."""
    from paceline.run.compose.compose import check_comm

    if not text:
        return ["tcp", "gloo"] if lab else ["shm", "tcp", "gloo"]
    results, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            results.append("")
        else:
            results[-1] += letter
    names = [name.strip() for name in results if name.strip()]
    for name in names:
        if name != "auto":
            check_comm(name)
        if not kind_of(name).for_jobs:
            raise WrongCommand(f"--comm {name}", why="it joins threads of one process, for tests")
    return names


def _measure(run: Run, comm: str, verbs: Sequence[str], sizes: Sequence[int], buffer: int, *, first: bool) -> Any:
    """Run the sweep on all ranks; pairs are timed once, over the first comm."""
    from paceline.race.script import launch

    spec = {"comm": comm, "verbs": verbs, "sizes": sizes, "buffer": buffer if kind_of(comm).sockets else 0}
    spec |= {"pairs": first and run.workers > 1, "deadline": run.deadline}
    with job_folder() as folder:
        out = folder / "net.json"
        argv = [sys.executable, "-m", "paceline.measure.net.worker", jsons.dumps(spec), str(out)]
        launch(argv, run=run, choices={})
        return jsons.loads(out.read_text())


def _print(rows: Sequence[Row], pairs: Sequence[Pair]) -> dict[str, Link]:
    """Print a table and a fit for each comm and verb. Return a link per comm, preferably the fit of all_reduce."""
    links: dict[str, Link] = {}
    groups = dict.fromkeys((row.comm, row.verb) for row in rows)
    head = ("size", "count", "type", "time", "algbw", "busbw", "wrong")
    units = ("(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "")
    for comm, verb in groups:
        mine = [row for row in rows if (row.comm, row.verb) == (comm, verb)]
        print(f"\n{verb} over {comm}, {mine[0].ranks} rank(s)")
        cells = [(f"{row.nbytes}", f"{row.count}", "float", *_speeds(row), f"{row.wrong}") for row in mine]
        print("\n".join(table(head, [units, *cells])))
        fitted = fit_rows(mine)
        if fitted is not None:
            print(f"fit: latency {fitted.latency * 1e6:.1f} us, bandwidth {fitted.bandwidth / 1e9:.3f} GB/s of a link")
            if verb == "all_reduce" or comm not in links:
                links[comm] = fitted
    if pairs:
        _print_pairs(pairs)
    return links


def _speeds(row: Row) -> tuple[str, str, str]:
    return f"{row.seconds * 1e6:.1f}", f"{row.algbw / 1e9:.3f}", f"{row.busbw / 1e9:.3f}"


def _print_pairs(pairs: Sequence[Pair]) -> None:
    print(f"\npairs over the first comm ({len(pairs)})")
    rows = [(f"{p.first} - {p.second}", f"{p.latency * 1e6:.1f} us", f"{p.bandwidth / 1e9:.3f} GB/s") for p in pairs]
    print("\n".join(table(("ranks", "latency", "bandwidth"), rows)))
    for pair, why in slow_pairs(pairs):
        print(f"slow: ranks {pair.first} and {pair.second} have {why}")


def _figures(row: Row) -> dict[str, Any]:
    return {
        "comm": row.comm,
        "verb": row.verb,
        "nbytes": row.nbytes,
        "ranks": row.ranks,
        "seconds": row.seconds,
        "algbw": row.algbw,
        "busbw": row.busbw,
        "wrong": row.wrong,
    }


def _link_file(links: dict[str, Link], pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the content of a link file, in seconds and bytes per second. Its field `link` describes the first comm."""
    values = {comm: {"latency": link.latency, "bandwidth": link.bandwidth} for comm, link in links.items()}
    return {
        "kind": "link",
        "link": next(iter(values.values()), None),
        "links": values,
        "pairs": [[pair.first, pair.second, pair.latency, pair.bandwidth] for pair in pairs],
    }

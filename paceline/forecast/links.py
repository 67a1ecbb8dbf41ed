"""The network of a forecast from measurements: the file of `paceline net`, or the output of nccl-tests.

all_reduce_perf    T(n) = a + n / b, fitted; a is 2 (p - 1) hops of a ring, b moves 2 (p - 1) / p of every byte
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from paceline.comm.link import fit
from paceline.errors import WrongCommand
from paceline.files.read import read_text
from paceline.forecast.fabric import Fabric, Line

ROW = re.compile(r"^\s*(\d{1,18})\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+[\d.]+")
RANK = re.compile(r"^#\s+Rank\s+\d+\s", re.MULTILINE)


def with_link(fabric: Fabric, path: Path) -> tuple[Fabric, str]:
    """Return the fabric with the measured line between nodes, and a text that names the source of the measurement."""
    text = read_text(path)
    line = of_nccl_tests(text, path) if "busbw" in text else of_link_file(text, path)
    source = f"{path}: {line.latency * 1e6:.1f} us and {line.bandwidth * 8 / 1e9:.2f} Gbit/s, measured"
    return replace(fabric, between=line), source


def of_nccl_tests(text: str, path: Path) -> Line:
    """Read the line from the table of all_reduce_perf, out-of-place columns."""
    rows = [(int(match[1]), _seconds(match[2])) for row in text.splitlines() if (match := ROW.match(row))]
    ranks = len(RANK.findall(text))
    rows = [(size, seconds) for size, seconds in rows if size and seconds]
    if len(rows) < 2 or ranks < 2:
        raise WrongCommand(
            f"{path} has no table of nccl-tests",
            why=f"it names {ranks} ranks and {len(rows)} sizes; 2 of each are needed",
            remedy="all_reduce_perf -b 8 -e 128M -f 2 -g 8 > FILE",
        )
    return ring_line([size for size, _ in rows], [seconds for _, seconds in rows], ranks)


def _seconds(microseconds: str) -> float:
    """Return the seconds in a text. Return 0, as for a size that was not measured, if it is not a number."""
    try:
        return float(microseconds) * 1e-6
    except ValueError:
        return 0.0


def ring_line(sizes: list[int], seconds: list[float], ranks: int) -> Line:
    """Return the line of a ring of ranks, from the seconds of whole sums."""
    link = fit(sizes, seconds)
    passes = 2 * (ranks - 1)
    return Line(link.latency / passes, link.bandwidth * passes / ranks)


def of_link_file(text: str, path: Path) -> Line:
    """Read the line from JSON with latency (seconds) and bandwidth (bytes per second)."""
    try:
        values: Any = json.loads(text)
        measured = values.get("link") or (values.get("network") or {}).get("measured") or values
        line = Line(float(measured["latency"]), float(measured["bandwidth"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        raise WrongCommand(
            f"{path} is no measured link",
            why="it is neither a JSON with latency and bandwidth nor a table of nccl-tests",
            remedy="paceline net --json FILE",
        ) from None
    if not (0 <= line.latency < inf and 0 < line.bandwidth < inf):
        raise WrongCommand(
            f"{path} is no measured link",
            why="latency is at least 0 and bandwidth above 0, both finite",
            remedy="paceline net --json FILE",
        )
    return line

"""Describe a topology among a number of ranks: neighbors, weights, mixing rate and traffic. Loads no torch."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, zip_longest
from math import ceil, log

from paceline.errors import WrongCommand
from paceline.protocols import Topology
from paceline.report.drawing import LARGEST as LARGEST_DRAWING
from paceline.report.drawing import draw
from paceline.strategy import topologies
from paceline.strategy.topologies._weights import mixing_rate, models_crossing, models_sent, rows
from paceline.types import Mixing

LARGEST = 512  # the mixing rate takes size^3 operations per step of the period
LAST_STEP = 10**12
SHOWN = 32  # ranks that are printed
PART = 0.01
WIDTHS = (4, 6, 34, 30)  # widths of the columns; 80 in all with the gaps


@dataclass(frozen=True)
class Look:
    """A topology on `size` ranks and `nodes` nodes; `rows` are the weights of one step."""

    topology: Topology
    size: int
    nodes: int
    step: int
    period: int
    rows: tuple[Mixing, ...]
    mixing_rate: float
    sent: tuple[float, ...]
    crossing: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def symmetric(self) -> bool:
        return self.topology.symmetric(self.size, self.nodes)

    @property
    def doubly_stochastic(self) -> bool:
        return self.topology.doubly_stochastic(self.size, self.nodes)


def world(size: int | None, nodes: str | None) -> tuple[int, int]:
    """Return the numbers of ranks and nodes from --size 16 and --nodes 2x8. Either flag may be left out."""
    if nodes is None:
        return 8 if size is None else size, 1
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", nodes)
    if match is None:
        raise WrongCommand(f"--nodes {nodes}", why="it is nodes x ranks on each", remedy="--nodes 2x8")
    count, each = int(match[1]), int(match[2])
    if size not in (None, count * each):
        raise WrongCommand(
            f"--size {size} beside --nodes {nodes}",
            why=f"these nodes have {count * each} ranks",
            remedy=f"--size {count * each}",
        )
    return count * each, count


def look(text: str, size: int, nodes: int = 1, step: int = 0) -> Look:
    """Return everything that `paceline topology` shows about a topology."""
    topology: Topology = topologies.MENU.make(text)
    if size > LARGEST:
        raise WrongCommand(
            f"--size {size}", why=f"weights are computed for at most {LARGEST} ranks", remedy=f"--size {LARGEST}"
        )
    if not 0 <= step <= LAST_STEP:
        raise WrongCommand(f"--step {step}", why=f"steps count from 0 to {LAST_STEP:,}", remedy="--step 0")
    topology.check(size, nodes)
    note = topology.note(size, nodes)
    return Look(
        topology=topology,
        size=size,
        nodes=nodes,
        step=step,
        period=topology.period(size, nodes),
        rows=rows(topology, size, step, nodes),
        mixing_rate=mixing_rate(topology, size, nodes),
        sent=models_sent(topology, size, nodes),
        crossing=models_crossing(topology, size, nodes),
        notes=() if note is None else (note,),
    )


def picture(look: Look) -> str:
    """Return the SVG of the chosen step."""
    if look.size > LARGEST_DRAWING:
        raise WrongCommand(
            f"--svg of {look.size} ranks",
            why=f"more than {LARGEST_DRAWING} cannot be told apart",
            remedy=f"--size {LARGEST_DRAWING}",
        )
    return draw(look.topology, look.size, look.step, look.nodes)


def values(look: Look) -> dict[str, object]:
    """Return the description as JSON values."""
    return {
        "topology": str(look.topology),
        "size": look.size,
        "nodes": look.nodes,
        "directed": look.topology.directed,
        "symmetric": look.symmetric,
        "doubly_stochastic": look.doubly_stochastic,
        "period": look.period,
        "mixing_rate": look.mixing_rate,
        "models_sent": list(look.sent),
        "models_crossing": list(look.crossing),
        "notes": list(look.notes),
        "step": look.step,
        "rows": [
            {
                "rank": rank,
                "keep": row.keep,
                "sources": [{"rank": source, "weight": weight} for source, weight in row.sources],
                "targets": list(row.targets),
            }
            for rank, row in enumerate(look.rows)
        ],
    }


def spoken(look: Look) -> list[str]:
    """Return the description as lines of at most 80 columns."""
    nodes = f", {look.nodes} nodes" if look.nodes > 1 else ""
    facts = [
        ("topology", f"{look.topology} on {_count(look.size, 'rank')}{nodes}"),
        ("weights", _weights(look)),
        ("mixing rate", f"{look.mixing_rate:.4f}: {_meaning(look)}"),
        ("models sent", f"{_range(look.sent)} per rank and step"),
    ]
    if look.nodes > 1:
        facts.append(("crossing", f"{_range(look.crossing)} out of each node per step"))
    if look.topology.changes:
        facts.append(("period", f"{_count(look.period, 'step')}; below is step {look.step}"))
    facts += [("note", note) for note in look.notes]
    lines = [line for word, text in facts for line in _fact(word, text)]
    return [*lines, "", *_table(look)]


def _fact(word: str, text: str) -> list[str]:
    return textwrap.wrap(text, 80, initial_indent=f"{word:13}", subsequent_indent=" " * 13, break_on_hyphens=False)


def _weights(look: Look) -> str:
    if look.symmetric and look.doubly_stochastic:
        return "symmetric, rows and columns sum to one: the mean is kept"
    if look.doubly_stochastic:
        return "not symmetric; rows and columns sum to one: the mean is kept"
    return "rows sum to one, columns do not: the mean is not kept"


def _meaning(look: Look) -> str:
    if look.size == 1:
        return "one rank is its own mean"
    if not look.doubly_stochastic:
        return "second singular value; the limit is not the mean"
    if look.mixing_rate == 0:
        return f"all ranks hold the mean after {_count(look.period, 'step')}"
    return f"{PART:.0%} of the distance to the mean is left after {_count(_steps(look.mixing_rate), 'step')}"


def _steps(rate: float) -> int:
    return ceil(log(PART) / log(rate))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _range(values: tuple[float, ...]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _table(look: Look) -> Iterator[str]:
    yield _line(("rank", "keeps", "hears from", "sends to"))
    yield _line(tuple("-" * width for width in WIDTHS))
    for rank, row in enumerate(look.rows[:SHOWN]):
        cells = (str(rank).rjust(WIDTHS[0]), f"{row.keep:.4f}", _heard(row), spans(row.targets) or "-")
        wrapped = [textwrap.wrap(cell, width) or [cell] for cell, width in zip(cells, WIDTHS, strict=True)]
        wrapped[0] = [cells[0]]
        yield from (_line(parts) for parts in zip_longest(*wrapped, fillvalue=""))
    if look.size > SHOWN:
        yield f"and {look.size - SHOWN} more ranks: --json FILE has them all"


def _line(cells: tuple[str, ...]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()


def _heard(row: Mixing) -> str:
    """Format the sources of a rank by weight: "0.2 of 1, 3; 0.25 of 4"."""
    by_weight = sorted(row.sources, key=lambda source: (-source[1], source[0]))
    groups = groupby(by_weight, key=lambda source: source[1])
    return "; ".join(f"{weight:.4f} of {spans(tuple(r for r, _ in group))}" for weight, group in groups) or "-"


def spans(ranks: tuple[int, ...]) -> str:
    """Format sorted ranks. Three or more consecutive ranks become a range: "0-3, 5, 6"."""
    groups: list[list[int]] = []
    for rank in ranks:
        if groups and groups[-1][-1] == rank - 1:
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in groups)

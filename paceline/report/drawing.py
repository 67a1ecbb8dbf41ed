"""Draw a topology as SVG: ranks on a circle, readable on light and dark backgrounds.

Edges of the drawn step are strong. Edges of other steps in the period are faint, behind them. An edge in both
directions is a line; an edge in one direction is an arrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import cos, pi, sin, sqrt

from paceline.protocols import Topology
from paceline.strategy.topologies._weights import edges, placement, rows

SIDE = 640
CENTER = SIDE / 2
MARGIN = 56  # room for the title above and the caption below
LARGEST = 128  # more ranks would overlap on SIDE pixels

STYLE = """\
    .paper { fill: #ffffff; stroke: #d0d7de }
    .ink { fill: #1f2328 }
    .soft { fill: #59636e }
    .edge { stroke: #0969da; fill: none; stroke-width: 1.5 }
    .faint { stroke: #d0d7de; fill: none }
    .tip { fill: #0969da }
    .even { fill: #ddf4ff; stroke: #0969da }
    .odd { fill: #fff1e5; stroke: #bc4c00 }
    .last { fill: #dafbe1; stroke: #1a7f37 }
    @media (prefers-color-scheme: dark) {
      .paper { fill: #0d1117; stroke: #3d444d }
      .ink { fill: #f0f6fc }
      .soft { fill: #9198a1 }
      .edge { stroke: #58a6ff }
      .faint { stroke: #3d444d }
      .tip { fill: #58a6ff }
      .even { fill: #0c2d6b; stroke: #58a6ff }
      .odd { fill: #5a1e02; stroke: #f0883e }
      .last { fill: #033a16; stroke: #3fb950 }
    }"""

Edge = tuple[int, int]
Point = tuple[float, float]


def draw(topology: Topology, size: int, step: int = 0, nodes: int = 1) -> str:
    """Return the SVG of one step. Ranks of neighboring nodes differ in color."""
    now = {(source, r) for r, row in enumerate(rows(topology, size, step, nodes)) for source, _ in row.sources}
    behind = set(edges(topology, size, nodes)) - now if topology.changes else set()
    points, radius = _circle(size), _radius(size)
    title = f"{topology} on {size} rank{'s' * (size != 1)}"
    caption = f"step {step} of a period of {topology.period(size, nodes)}" if topology.changes else "every step"
    parts = [
        *_head(title, caption, radius),
        *_lines(behind, points, radius, "faint", tips=False),
        *_lines(now, points, radius, "edge", tips=True),
        *_ranks(points, radius, placement(size, nodes)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _circle(size: int) -> list[Point]:
    """Return the positions of ranks: rank 0 at the top, the others clockwise."""
    reach = CENTER - MARGIN if size > 1 else 0.0
    angles = [2 * pi * rank / size for rank in range(size)]
    return [(CENTER + reach * sin(angle), CENTER - reach * cos(angle)) for angle in angles]


def _radius(size: int) -> float:
    return max(5.0, min(18.0, 0.4 * 2 * pi * (CENTER - MARGIN) / size))


def _head(title: str, caption: str, radius: float) -> list[str]:
    tip = max(4.0, radius / 3)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIDE} {SIDE}" width="{SIDE}" height="{SIDE}" '
        'role="img" aria-labelledby="title" font-family="system-ui, sans-serif" font-size="14">',
        f'  <title id="title">{escape(title)}, {escape(caption)}</title>',
        f"  <style>\n{STYLE}\n  </style>",
        f'  <defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" '
        f'markerWidth="{2 * tip:.1f}" markerHeight="{2 * tip:.1f}" orient="auto">'
        '<path class="tip" d="M0 1 10 5 0 9z"/></marker></defs>',
        f'  <rect class="paper" x="0.5" y="0.5" width="{SIDE - 1}" height="{SIDE - 1}" rx="8"/>',
        f'  <text class="ink" x="16" y="26">{escape(title)}</text>',
        f'  <text class="soft" x="16" y="{SIDE - 16}">{escape(caption)}</text>',
    ]


def _lines(ways: set[Edge], points: list[Point], radius: float, kind: str, *, tips: bool) -> Iterable[str]:
    for source, target in sorted(ways):
        both = (target, source) in ways
        if both and source > target:
            continue
        (x1, y1), (x2, y2) = _between(points[source], points[target], radius)
        tip = ' marker-end="url(#tip)"' if tips and not both else ""
        yield f'  <line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{tip}/>'


def _color(node: int, nodes: int) -> str:
    """Return the color of a node. Two colors alternate; with an odd number of nodes the last one gets a third color."""
    if nodes > 1 and nodes % 2 and node == nodes - 1:
        return "last"
    return "odd" if node % 2 else "even"


def _between(start: Point, end: Point, radius: float) -> tuple[Point, Point]:
    """Return the ends of an edge, on the rims of two circles."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    part = (radius + 2) / sqrt(dx * dx + dy * dy)
    return (start[0] + dx * part, start[1] + dy * part), (end[0] - dx * part, end[1] - dy * part)


def _ranks(points: list[Point], radius: float, where: tuple[int, ...]) -> Iterable[str]:
    font = max(6.0, min(14.0, radius * 0.9))
    for rank, (x, y) in enumerate(points):
        kind = _color(where[rank], where[-1] + 1)
        yield f'  <circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
        yield (
            f'  <text class="ink" x="{x:.1f}" y="{y + font * 0.35:.1f}" font-size="{font:.1f}" '
            f'text-anchor="middle">{rank}</text>'
        )

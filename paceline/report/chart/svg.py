"""Elements of an SVG. Text is escaped here; a color is a name of the palette."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

FONT = "Inter, system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, DejaVu Sans, sans-serif"
_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
_THIN, _BROAD = set("iljtfrI.,:;|'! ()[]/"), set("mwMW%@")


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text_width(text: str, size: float = 12) -> float:
    """Estimate the width of a text. The fonts of readers differ by about a tenth."""
    return size * sum(0.36 if c in _THIN else 0.95 if c in _BROAD else 0.72 if c.isupper() else 0.62 for c in text)


def shortened(text: str, room: float, size: float = 12) -> str:
    """Return the text, cut to the room that it has."""
    if text_width(text, size) <= room:
        return text
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def paint(color: str) -> str:
    return f"var(--{color})"


def whole(width: float, height: float, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}" font-size="12">{"".join(parts)}</svg>'


def beside(panels: Sequence[tuple[str, str]], columns: int, *, paper: str, gap: float = 24) -> str:
    """Return several drawings, each with a title, in rows of `columns` drawings on one background."""
    sizes = [tuple(map(float, _SIZE.search(svg).groups())) for _, svg in panels]  # type: ignore[union-attr]
    wide, high = max(size[0] for size in sizes), max(size[1] for size in sizes)
    parts = []
    for k, (title, svg) in enumerate(panels):
        x, y = gap + k % columns * (wide + gap), gap + k // columns * (high + gap + 20)
        parts += [label(x, y + 4, title, "ink", size=13, bold=True)]
        parts += [svg.replace("<svg ", f'<svg x="{number(x)}" y="{number(y + 16)}" ', 1)]
    across, down = min(columns, len(panels)), -(-len(panels) // columns)
    width, height = gap + across * (wide + gap), gap + down * (high + gap + 20)
    return whole(width, height, [rect(0, 0, width, height, paper), *parts])


def _closed(element: str, name: str, says: str) -> str:
    """Close an SVG element. If `says` is set, it gets a tooltip."""
    return f"{element}><title>{escape(says)}</title></{name}>" if says else f"{element}/>"


def rect(
    x: float, y: float, width: float, height: float, color: str, *, round_: float = 0, says: str = "", more: str = ""
) -> str:
    corner = f' rx="{number(round_)}"' if round_ else ""
    place = f'x="{number(x)}" y="{number(y)}" width="{number(max(0.5, width))}" height="{number(height)}"'
    return _closed(f'<rect {place}{corner} fill="{paint(color)}"{more}', "rect", says)


def line(x1: float, y1: float, x2: float, y2: float, color: str, *, width: float = 1, dash: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line {ends} stroke="{paint(color)}" stroke-width="{number(width)}"{dashes}/>'


def dot(x: float, y: float, radius: float, color: str, *, says: str = "", more: str = "") -> str:
    place = f'cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"'
    return _closed(f'<circle {place} fill="{paint(color)}"{more}', "circle", says)


def path(points: Iterable[tuple[float, float]], *, close: bool = False) -> str:
    """Return the path through these points, for the attribute `d`."""
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points) + ("Z" if close else "")


def stroke(d: str, color: str, *, width: float = 2, dash: str = "", says: str = "") -> str:
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    look = f'fill="none" stroke="{paint(color)}" stroke-width="{number(width)}" stroke-linejoin="round"{dashes}'
    return _closed(f'<path d="{d}" {look}', "path", says)


def fill(d: str, color: str, *, says: str = "", more: str = "") -> str:
    return _closed(f'<path d="{d}" fill="{paint(color)}"{more}', "path", says)


def label(
    x: float, y: float, text: str, color: str = "soft", *, size: float = 12, anchor: str = "", bold: bool = False
) -> str:
    look = (f' text-anchor="{anchor}"' if anchor else "") + (f' font-size="{number(size)}"' if size != 12 else "")
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{number(x)}" y="{number(y)}" fill="{paint(color)}"{look}{weight}>{escape(text)}</text>'

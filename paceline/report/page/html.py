"""Pieces of HTML. Whatever came from a record is escaped here and nowhere else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from html import escape

from paceline.report.plots import NARROW, WIDE, Figure
from paceline.report.tables import Table


def tag(name: str, content: str, **attributes: str) -> str:
    """An element; `content` is HTML. Attribute names lose a trailing underscore: class_ is class."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>"


def text(name: str, content: str, **attributes: str) -> str:
    """An element around plain text."""
    return tag(name, escape(content), **attributes)


def table(values: Table) -> str:
    head = "".join(text("th", cell, scope="col") for cell in values.head)
    rows = "".join(tag("tr", _row(row)) for row in values.rows)
    inner = tag("thead", tag("tr", head)) + tag("tbody", rows)
    return tag("div", tag("table", inner), class_="scroll")


def _row(cells: Iterable[str]) -> str:
    first, *rest = cells
    return text("th", first, scope="row") + "".join(text("td", cell) for cell in rest)


def figure(chart: Figure, title: str | None = None) -> str:
    """The chart at two widths, what it says, and the table behind it."""
    drawings = [drawing(chart, width, kind) for width, kind in ((WIDE, "wide"), (NARROW, "narrow"))]
    behind = tag("details", text("summary", "Table") + table(chart.table))
    heading = text("h3", title or chart.title)
    return tag("figure", heading + "".join(drawings) + behind)


def slug(title: str) -> str:
    """The id of a section."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


_numbers = itertools.count()


def drawing(chart: Figure, width: int, kind: str) -> str:
    return tag("div", named(chart.chart.draw(width), chart.title, chart.says), class_=f"chart {kind}")


def named(svg: str, title: str, says: str) -> str:
    """The SVG with a title and a description, whose ids are unique in the page."""
    number = next(_numbers)
    head = f'<title id="t{number}">{escape(title)}</title><desc id="d{number}">{escape(says)}</desc>'
    start, rest = svg.split(">", 1)
    return f'{start} role="img" aria-labelledby="t{number} d{number}">{head}{rest}'

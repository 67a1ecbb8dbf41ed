"""Pieces of HTML. All text from records is escaped here, and nowhere else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from html import escape

from paceline.report.plots import NARROW, WIDE, Figure
from paceline.report.tables import Table


def tag(name: str, content: str, **attributes: str) -> str:
    """Return an element whose `content` is HTML. The name class_ becomes class: a trailing underscore is removed."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{content}</{name}>"


def text(name: str, content: str, **attributes: str) -> str:
    """Return an element around plain text, which is escaped."""
    return tag(name, escape(content), **attributes)


def prose(name: str, content: str) -> str:
    """Return an element around a sentence, in which no line ends between a number and its percent sign."""
    return tag(name, escape(content).replace(" %", "&nbsp;%"))


def table(values: Table) -> str:
    head = "".join(text("th", cell, scope="col") for cell in values.head)
    rows = "".join(tag("tr", _row(row)) for row in values.rows)
    inner = tag("thead", tag("tr", head)) + tag("tbody", rows)
    return tag("div", tag("table", inner), class_="scroll")


def _row(cells: Iterable[str]) -> str:
    first, *rest = cells
    return text("th", first, scope="row") + "".join(text("td", cell) for cell in rest)


def figure(chart: Figure, title: str | None = None) -> str:
    """Return the chart at two widths, its description, and the table behind it."""
    drawings = [drawing(chart, width, kind) for width, kind in ((WIDE, "wide"), (NARROW, "narrow"))]
    behind = tag("details", text("summary", "Table") + table(chart.table))
    heading = text("h3", title or chart.title)
    return tag("figure", heading + "".join(drawings) + behind)


def slug(title: str) -> str:
    """Return the id of a section."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


_numbers = itertools.count()


def drawing(chart: Figure, width: int, kind: str) -> str:
    return tag("div", named(chart.chart.draw(width), chart.title, chart.says), class_=f"chart {kind}")


def named(svg: str, title: str, says: str) -> str:
    """Return the SVG with a title and a description, whose ids are unique in the page."""
    number = next(_numbers)
    head = f'<title id="t{number}">{escape(title)}</title><desc id="d{number}">{escape(says)}</desc>'
    start, rest = svg.split(">", 1)
    return f'{start} role="img" aria-labelledby="t{number} d{number}">{head}{rest}'

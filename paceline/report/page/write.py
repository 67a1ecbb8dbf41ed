"""Write the report of some records as one HTML file.

The page loads nothing. Its content security policy (a meta element) allows pictures inside the page, and the style and
the script whose hashes it names. Any other style or script has no effect.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline._version import VERSION
from paceline.measure.record.record import Record, write
from paceline.measure.record.store import EventFiles, Skipped, Stored
from paceline.race.results.fields import fields_of
from paceline.report.page import sections
from paceline.report.page.contents import with_contents
from paceline.report.page.html import named, tag, text
from paceline.report.page.sections import Drawn, RanksOfRecord, draw_field
from paceline.report.palette import DARK, LIGHT, variables
from paceline.report.plots import to_png, to_svg

TITLE = "paceline report"


def write_report(
    records: Sequence[Record],
    path: Path,
    title: str = TITLE,
    *,
    events: RanksOfRecord | None = None,
    skipped: Sequence[Skipped] = (),
    charts: Path | None = None,
) -> Path:
    """Write the page of these records. With `charts`, also write its charts as PNG and SVG into that folder.

    `events` holds the events of each rank, by the id of the record. Without this argument, event files are searched in
    the folder of the page. Without events there is no timeline.
    """
    seen = beside(records, path.parent) if events is None else events
    drawn = [draw_field(field, seen) for field in fields_of([record for record in records if not record.elastic])]
    write(path, page(drawn, records, title, skipped))
    if charts is not None:
        write_charts(drawn, charts)
    return path


def beside(records: Sequence[Record], folder: Path) -> RanksOfRecord:
    """Return the events of the records whose event file is in this folder."""
    return EventFiles([Stored(record, folder / "record.json") for record in records], [])


def page(drawn: Sequence[Drawn], records: Sequence[Record], title: str, skipped: Sequence[Skipped]) -> str:
    fields = [shown.field for shown in drawn]
    several = len(fields) > 1
    parts: list[str] = []
    for shown in drawn:
        parts += sections.body(shown, shown.field.title if several else "", has_verdict=shown is drawn[0])
    parts += sections.elastic_jobs(records)
    parts += [sections.runs(records), *sections.notes(records, skipped, fields), sections.environments(records)]
    contents, body = with_contents(parts)
    main = tag("main", _bar() + sections.hero(fields, records, title) + contents + body + _foot())
    return "\n".join(
        ["<!doctype html>", f'<html lang="en">{_head(title)}', tag("body", main + _script()), "</html>", ""]
    )


def _head(title: str) -> str:
    """Return the head of the page with its style. A theme that the reader selects overrides that of the system."""
    light, dark = variables(LIGHT), variables(DARK)
    style = "\n".join(
        [
            f":root {{ color-scheme: light; {light} }}",
            f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }} }}",
            f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}",
            _part("style.css"),
        ]
    )
    return (
        '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, _part("script.js"))}">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{style}</style></head>'
    )


def _policy(style: str, script: str) -> str:
    return f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:"


def _hash(text: str) -> str:
    """Return the hash of a text in the form of a content security policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def _part(name: str) -> str:
    return (files("paceline.report.page") / name).read_text()


def _script() -> str:
    return f"<script>{_part('script.js')}</script>"


def _bar() -> str:
    mark = text("span", "paceline", class_="mark")
    button = text("button", "Theme", type="button", id="theme", aria_label="Switch between light and dark")
    return tag("div", mark + button, class_="bar")


def _foot() -> str:
    origin = f"Made by paceline {VERSION} from records alone. This file loads nothing and works offline."
    return tag("footer", text("p", origin))


def write_charts(drawn: Sequence[Drawn], folder: Path) -> list[Path]:
    """Write every chart as SVG and PNG. File names are those of the charts."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for number, shown in enumerate(drawn):
        for figure in shown.figures():
            stem = figure.name if len(drawn) == 1 else f"{number + 1}-{figure.name}"
            while folder / f"{stem}.svg" in written:
                stem += "-again"
            write(folder / f"{stem}.svg", named(to_svg(figure), figure.title, figure.says))
            (folder / f"{stem}.png").write_bytes(to_png(figure))
            written += [folder / f"{stem}.svg", folder / f"{stem}.png"]
    return written

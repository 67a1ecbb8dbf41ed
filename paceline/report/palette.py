"""Colors by meaning, for light and dark backgrounds. Colors that meet in a chart also differ in lightness.

A chart in a page uses CSS variables, which follow the theme of the page. A chart in a separate file gets the light
colors.
"""

from __future__ import annotations

import re

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b2129",
    "soft": "#5a6572",
    "grid": "#e4e8ed",
    "limit": "#b4bec9",
    "reference": "#7d8996",
    "same": "#0a66c2",
    "changes": "#c2620c",
    "data": "#8d5fb8",
    "forward": "#74b8ea",
    "backward": "#0b57a4",
    "exposed": "#d9480f",
    "update": "#12866a",
    "other": "#c3cad2",
    "flight": "#c08a00",
    "series1": "#0a67c3",
    "series2": "#c2630d",
    "series3": "#12876b",
    "series4": "#9c3587",
    "series5": "#6a7500",
    "series6": "#41505f",
}
DARK = {
    "paper": "#12171d",
    "ink": "#e9eef4",
    "soft": "#9aa7b4",
    "grid": "#29313a",
    "limit": "#56616d",
    "reference": "#8b98a6",
    "same": "#5aa9f5",
    "changes": "#f0a04b",
    "data": "#b795de",
    "forward": "#9bd0f5",
    "backward": "#3f8ede",
    "exposed": "#ff7c4d",
    "update": "#3fc39f",
    "other": "#4a5561",
    "flight": "#e3b945",
    "series1": "#5baaf6",
    "series2": "#f1a14c",
    "series3": "#40c4a0",
    "series4": "#dd86cb",
    "series5": "#bcc74b",
    "series6": "#a9b5c1",
}


SERIES = tuple(name for name in LIGHT if name.startswith("series"))
_VARIABLE = re.compile(r"var\(--(\w+)\)")


def painted(svg: str, colors: dict[str, str]) -> str:
    """Return the drawing with colors in place of CSS variables."""
    return _VARIABLE.sub(lambda match: colors[match[1]], svg)


def variables(colors: dict[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colors.items())

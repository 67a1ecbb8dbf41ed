"""The table of contents: a link to every section of the page. Sections of further fields are grouped by field."""

from __future__ import annotations

import re
from collections.abc import Iterable

from paceline.report.page.html import tag

# Text from records is escaped before, so this pattern only matches sections of the page itself.
_HEADING = re.compile(r'<(section) id="([^"]+)"><h2>(.*?)</h2>|<h2 class="(field)" id="([^"]+)">(.*?)</h2>')


def with_contents(parts: Iterable[str]) -> tuple[str, str]:
    """Return the list of links, and the parts of the page with unique ids."""
    seen: dict[str, int] = {}
    links: list[str] = []

    def counted(match: re.Match[str]) -> str:
        kind, slug, title = (match[1], match[2], match[3]) if match[1] else (match[4], match[5], match[6])
        seen[slug] = seen.get(slug, 0) + 1
        unique = slug if seen[slug] == 1 else f"{slug}-{seen[slug]}"
        links.append(tag("li", tag("a", title, href=f"#{unique}"), **({"class": "field"} if kind == "field" else {})))
        return match[0].replace(f'id="{slug}"', f'id="{unique}"', 1)

    body = "".join(_HEADING.sub(counted, part) for part in parts)
    return tag("nav", tag("ul", "".join(links)), class_="contents", aria_label="Contents"), body

"""The table of contents: every section of the page by its title, those of a further field below its name."""

from __future__ import annotations

import re
from collections.abc import Iterable

from paceline.report.page.html import tag

# Text of records is escaped before it gets here: only sections of the page itself look like this.
_HEADING = re.compile(r'<(section) id="([^"]+)"><h2>(.*?)</h2>|<h2 class="(field)" id="([^"]+)">(.*?)</h2>')


def with_contents(parts: Iterable[str]) -> tuple[str, str]:
    """The list of links, and the parts with ids that are unique: those of the second field get a number."""
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

"""Generate the page that shows which members go together. compose decides about every pair; nothing is written by hand.

python -m paceline.run.combinations_page > docs/combinations.md
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.errors import Refused
from paceline.run.compose.compose import MENUS, compose
from paceline.run.run import Run

WORKERS = 4
# Members that need settings, each with the settings that this page uses.
WRITTEN = {"feedback": "feedback(topk)", "ps": "ps(servers=1, colocated=false)"}
# Values of further axes for pairs whose default combination would be refused for another reason.
BESIDE: dict[str, dict[str, str]] = {
    "server": {"exchange": "ps(servers=1, colocated=false)"},
    "exact_diffusion": {"exchange": "neighbor(ring)"},
    "push_sum": {"exchange": "neighbor(ring)"},
    "push_diging": {"exchange": "neighbor(ring)"},
    "neighbor": {"rule": "atc"},
    "window": {"rule": "atc"},
}
PAIRS = (
    ("rule", "exchange"),
    ("rule", "schedule"),
    ("rule", "compressor"),
    ("exchange", "schedule"),
    ("exchange", "compressor"),
    ("schedule", "compressor"),
)


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Combinations"
    yield ""
    yield "Which members go together. This page is generated from `run/compose/` by"
    yield "`python -m paceline.run.combinations_page`; a test compares the two. A dot is a pair that runs, a number a"
    yield f"pair that is refused, for the reason below. Asked with {WORKERS} workers and `--optimizer 'sgd(lr=0.1)'`;"
    yield "the other axes are the defaults, or what a member cannot do without."
    reasons: list[str] = []
    for down, across in PAIRS:
        yield from ("", f"## {down} and {across}", "")
        columns = MENUS[across].names()
        yield f"| {down} | {' | '.join(f'`{name}`' for name in columns)} |"
        yield f"|---|{'---|' * len(columns)}"
        for name in MENUS[down].names():
            cells = [_cell(reasons, {down: name, across: column}) for column in columns]
            yield f"| `{name}` | {' | '.join(cells)} |"
    yield from ("", "## Reasons", "")
    yield from (f"{number}. {reason}" for number, reason in enumerate(reasons, start=1))


def _cell(reasons: list[str], pair: dict[str, str]) -> str:
    problems = refusals(pair)
    for reason in problems:
        if reason not in reasons:
            reasons.append(reason)
    return ", ".join(str(reasons.index(reason) + 1) for reason in problems) or "."


def refusals(pair: dict[str, str]) -> Sequence[str]:
    """Return the reasons why two members do not go together."""
    beside: dict[str, str] = {}
    for name in pair.values():
        beside.update({axis: text for axis, text in BESIDE.get(name, {}).items() if axis not in pair})
    members = {**beside, **{axis: WRITTEN.get(name, name) for axis, name in pair.items()}}
    try:
        compose(Run(workers=WORKERS, optimizer="sgd(lr=0.1)", **members))  # type: ignore[arg-type]
    except Refused as problem:
        return [_why(text) for text in problem.problems]
    return []


def _why(text: str) -> str:
    """Return the reason of a refusal without the names of the two members, which the table already shows."""
    reason = text.partition(": ")[2] or text
    return reason.partition(". try: ")[0]


if __name__ == "__main__":
    print(page(), end="")

"""The sections of the page, from top to bottom. A section with nothing to show is left out."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

from paceline.cluster.environment import Environment
from paceline.errors import PacelineError
from paceline.measure.record.record import Record
from paceline.measure.record.store import Skipped
from paceline.race.results.fields import Field, failed
from paceline.race.results.heats import ALONE
from paceline.race.results.learning import accuracy_of
from paceline.race.results.standing import CHANGES, SAME, Standing, name_of
from paceline.race.results.verdict import leaders, verdicts
from paceline.race.results.wording import share
from paceline.report import plots, spread, tables
from paceline.report.drawing import LARGEST, draw
from paceline.report.elastic import rate_over_time, task_table
from paceline.report.page.html import figure, prose, slug, table, tag, text
from paceline.report.plots import Figure
from paceline.report.timeline import timeline
from paceline.report.trace import Events, Span, one_step
from paceline.run.reference import COMPARED

RanksOfRecord = Mapping[str, Sequence[Events]]
_MOST = 12  # unsteady runs that are named
_LOGGED = 8  # figures of a script that are drawn
_COMMANDS = 8  # commands that are visible at first


@dataclass(frozen=True)
class Drawn:
    """The charts of one field (contenders that answer the same question), one attribute for each section."""

    field: Field
    same: list[tuple[int, Figure]]
    changes: list[tuple[int, Figure]]
    scaling: Figure | None
    breakdown: list[tuple[int, Figure]]
    steps: list[tuple[int, Figure]]
    traffic: list[tuple[int, Figure]]
    memory: list[tuple[int, Figure]]
    curves: list[tuple[int, Figure]]
    timeline: Figure | None

    def figures(self) -> Iterator[Figure]:
        for name in ("same", "changes", "breakdown", "steps", "traffic", "memory", "curves"):
            yield from (shown for _, shown in getattr(self, name))
        yield from (shown for shown in (self.scaling, self.timeline) if shown is not None)


def draw_field(field: Field, events: RanksOfRecord) -> Drawn:
    worlds = field.worlds if len(field.worlds) == 1 else [n for n in field.worlds if len(field.at(n)) > 1]
    worlds = worlds or field.worlds[-1:]
    return Drawn(
        field=field,
        same=_throughputs(field, worlds, SAME),
        changes=_throughputs(field, worlds, CHANGES),
        scaling=plots.scaling(field),
        breakdown=_each(worlds, lambda n: plots.breakdown(field.at(n), n)),
        steps=_each(worlds, lambda n: spread.steps(field.at(n), n)),
        traffic=_each(worlds, lambda n: plots.traffic(field.at(n), n)),
        memory=_each(worlds, lambda n: spread.memory(field.at(n), n)),
        curves=[
            *_each(worlds, lambda n: _loss(field, n)),
            *_each(worlds, lambda n: _accuracy(field, n)),
            *(shown for name in _logged(field) for shown in _each(worlds, partial(_metric, field, name))),
            *_each(worlds, lambda n: plots.accuracy_in_time(field.at(n), n)),
        ],
        timeline=timeline([(s, _step_of(s, events)) for s in field.at(worlds[-1])], worlds[-1]),
    )


def _each(worlds: Sequence[int], make: Any) -> list[tuple[int, Figure]]:
    return [(workers, made) for workers in worlds if (made := make(workers)) is not None]


def _throughputs(field: Field, worlds: Sequence[int], group: str) -> list[tuple[int, Figure]]:
    shown = []
    for workers in worlds:
        standings = field.at(workers, group)
        if standings:
            top = max(s.rate.high or s.rate.centre for s in field.at(workers))
            shown.append((workers, plots.throughput(field, standings, workers, top)))
    return shown


def _loss(field: Field, workers: int) -> Figure | None:
    standings = field.at(workers)
    return plots.curves(standings, [s.last.loss for s in standings], "loss", workers)


def _accuracy(field: Field, workers: int) -> Figure | None:
    standings = field.at(workers)
    return plots.curves(standings, [accuracy_of(s.last) for s in standings], "accuracy", workers)


def _logged(field: Field) -> list[str]:
    """Names of figures that scripts logged, as many as a page has room for."""
    names = dict.fromkeys(name for standing in field.standings for name in standing.last.metrics)
    return list(names)[:_LOGGED]


def _metric(field: Field, name: str, workers: int) -> Figure | None:
    return plots.logged(field.at(workers), name, workers)


def _step_of(standing: Standing, events: RanksOfRecord) -> list[Span]:
    """Return the step that is most similar to the median step, from the newest start that has events."""
    for record in reversed(standing.records):
        if ranks := events.get(record.id):
            return one_step(ranks, record.step.get("median"))
    return []


# the page -------------------------------------------------------------------------------------------


def hero(fields: Sequence[Field], records: Sequence[Record], title: str) -> str:
    """Return the top of the page: the verdict, and a few figures."""
    first = fields[0] if fields else None
    answer, *more = spoken(first) if first else ["No run in this report has a rate."]
    lines = "".join(prose("p", sentence) for sentence in more)
    what = text("p", f"{title} · {first.title}" if first else title, class_="eyebrow")
    return tag("header", what + prose("h1", answer) + tag("div", lines, class_="lead") + _tiles(first, records))


def spoken(field: Field) -> list[str]:
    """Return the verdict for each number of workers, the largest first, and for the largest what stands beside it."""
    results = verdicts(field)
    busy = results[0].busy
    disturbed = [f"{busy[0].upper()}{busy[1:]}."] if busy else []
    return [*(judged.headline for judged in results), *results[0].findings, *disturbed]


def _tiles(field: Field | None, records: Sequence[Record]) -> str:
    tiles = []
    if field is not None:
        most = field.worlds[-1]
        best = next(iter(leaders(field)), field.at(most)[-1])
        low, high = best.rate.low, best.rate.high
        error = "" if low is None or high is None else f"{max(0.0, low):,.0f} to {high:,.0f}"
        tiles.append((f"{best.rate.centre:,.0f}", f"{field.unit}/s, {best.label}", error))
        for which in COMPARED:
            rival = field.reference(which, best)
            if rival is not None and rival is not best:
                ratio = best.against(rival)
                tiles.append((f"{100 * ratio.centre:.0f} %", f"of {which}", share(ratio).partition(" % ")[2]))
    unsteady = sum(map(_is_unsteady, records))
    tiles.append((str(len(records)), f"run{'s' * (len(records) != 1)}", f"{unsteady} unsteady" if unsteady else ""))
    return tag("div", "".join(_tile(*tile) for tile in tiles), class_="tiles")


def _tile(value: str, what: str, detail: str) -> str:
    return tag("div", text("b", value) + text("span", what) + (text("small", detail) if detail else ""))


def body(drawn: Drawn, lead: str, has_verdict: bool) -> Iterator[str]:
    """Yield the sections of one field. Its verdict comes first, unless `has_verdict`: the top of the page shows it."""
    field = drawn.field
    if lead:
        yield tag("h2", "", class_="rule") + text("h2", lead, class_="field", id=slug(lead))
    if not has_verdict:
        lines = "".join(prose("p", sentence) for sentence in spoken(field))
        yield tag("div", lines, class_="lead")
    if drawn.same:
        note = "Strategies that end where all-reduce ends, up to rounding. Only these compete for the verdict."
        yield section("Same result as all-reduce", note, _figures(drawn.same, field))
    if drawn.changes:
        note = "They send less or later, or train otherwise, and reach another model. Compare accuracy, not only speed."
        yield section("Changes convergence", note, _figures(drawn.changes, field))
    if drawn.scaling:
        yield section("Scaling", _about_scaling(field), figure(drawn.scaling, "Workers against rate"))
    if drawn.breakdown:
        note = "Parts add up to the step. Exposed is time spent waiting for other ranks after backward."
        if any(standing.waits_in_backward for standing in field.standings):
            note += " DDP waits inside backward, where waiting cannot be told apart."
        yield section("Where a step goes", note, _figures(drawn.breakdown, field))
    if drawn.steps:
        note = "How long single steps took, over all starts. The line is the median; the table has the longest step."
        yield section("Step times", note, _figures(drawn.steps, field))
    if drawn.timeline:
        note = (
            "Each contender is shown with the recorded step that is most like its median step, all on one axis: what "
        )
        note += "each rank computed, and below it what it had under way. "
        note += "A rule that exchanges every few steps may be shown "
        note += "between exchanges."
        title = f"{field.run.model}, {_on(int(drawn.timeline.name.rpartition('-')[2]))}"
        yield section("Timeline of a step", note, figure(drawn.timeline, title))
    if drawn.traffic:
        note = (
            "Counted where bytes arrive. DDP does not count: its bytes are those of its buckets in a ring all-reduce."
        )
        yield section("Bytes per step", note, _figures(drawn.traffic, field))
    if drawn.memory:
        note = "Peak of a worker's process, the mean over workers; pages that processes share are divided among them."
        if any(spread.TOGETHER in row[0] for _, shown in drawn.memory for row in shown.table.rows):
            note += " Contenders that took turns in the same processes have one bar together."
        elif any(one.records[0].race.get("mates") for one in field.standings):
            note += " Contenders that took turns were started alone for it, once and for a few steps."
        yield section("Memory", note, _figures(drawn.memory, field))
    if drawn.curves:
        note = "Mean over ranks of the last start of each contender. Short runs say little about convergence."
        yield section("Loss and accuracy", note, "".join(figure(f, f"{f.title}, {_on(n)}") for n, f in drawn.curves))
    yield from topologies(field)


def _about_scaling(field: Field) -> str:
    note = "Rate against the number of workers. The dotted line is one worker's rate times the number of workers."
    if field.baseline and field.baseline.label != ALONE:
        note += f" One worker is {field.baseline.label}."
    if any(field.speedup(standing) is None for standing in field.standings):
        note += " Where a worker has other work to do than that one, there is no speed-up."
    return note


def _figures(figures: Sequence[tuple[int, Figure]], field: Field) -> str:
    return "".join(figure(shown, f"{field.run.model}, {_on(workers)}") for workers, shown in figures)


def _on(workers: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)}"


def topologies(field: Field) -> Iterator[str]:
    drawings: dict[str, str] = {}
    for standing in field.standings:
        topology, run = standing.topology, standing.first.run
        try:
            size = run.cluster.size
            if topology is not None and 1 < size <= LARGEST:
                drawings.setdefault(f"{topology} on {size} ranks", draw(topology, size, 0, run.cluster.count))
        except PacelineError:
            continue
    if drawings:
        pictures = "".join(
            tag("figure", text("h3", name) + _inline(svg, next(_numbers))) for name, svg in drawings.items()
        )
        yield section("Topologies", "Who mixes with whom.", tag("div", pictures, class_="pictures"))


_numbers = itertools.count()


def _inline(svg: str, number: int) -> str:
    """Return a drawing without its own light and dark style, because the theme of the page decides."""
    svg = re.sub(r"<style>.*?</style>", "", svg, flags=re.S)
    return (
        svg.replace('"title"', f'"topology{number}"')
        .replace("#tip", f"#tip{number}")
        .replace('"tip"', f'"tip{number}"', 1)
    )


def section(title: str, note: str, content: str) -> str:
    return tag("section", text("h2", title) + text("p", note, class_="note") + content, id=slug(title))


def elastic_jobs(records: Sequence[Record]) -> Iterator[str]:
    """The rate of each elastic job over time."""
    shown = [(record, chart) for record in records if (chart := rate_over_time(record)) is not None]
    if shown:
        note = (
            "Committed steps of jobs whose members may come and go. Every incident is marked; the table has its phases."
        )
        charts = "".join(figure(chart, name_of(record)) for record, chart in shown)
        tasks = text("p", "A task is one virtual shard over some consecutive steps.", class_="note")
        yield section("Elastic jobs", note, charts + tasks + table(task_table([record for record, _ in shown])))


def runs(records: Sequence[Record]) -> str:
    shown = table(tables.runs(records))
    commands: dict[str, list[Record]] = {}
    for record in records:
        commands.setdefault(record.text, []).append(record)
    blocks = [_command(line, records_of_line) for line, records_of_line in commands.items()]
    if len(blocks) > _COMMANDS:
        rest = text("summary", f"{len(blocks) - _COMMANDS} more commands") + "".join(blocks[_COMMANDS:])
        blocks[_COMMANDS:] = [tag("details", rest)]
    note = "Every run with the command that does it again."
    if any("***" in record.text for record in records):
        note += " *** stands for a secret that records do not keep."
    return section("Runs", note, "".join(blocks) + tag("details", text("summary", f"All {len(records)} runs") + shown))


def _command(line: str, records: Sequence[Record]) -> str:
    button = text("button", "Copy", type="button", class_="copy")
    kind = "" if records[0].kind == "measured" else text("span", records[0].kind, class_="badge")
    count = text("small", f"{len(records)} run{'s' * (len(records) != 1)}")
    return tag("div", tag("pre", tag("code", _unbroken(line))) + kind + count + button, class_="command")


def _unbroken(line: str) -> str:
    """Return a command as HTML in which no word is broken over two lines, unless the word is long."""
    return " ".join(escape(word) if len(word) > 36 else text("span", word) for word in line.split(" "))


def notes(records: Sequence[Record], skipped: Sequence[Skipped], fields: Sequence[Field] = ()) -> Iterator[str]:
    """Return failures, then notes of runs and verdicts, then unsteady runs.

    Only the first few unsteady runs are named.
    """
    lines = [
        f"{record.id} ({name_of(record)}, {_on(record.workers)}) failed: {_why(record)}" for record in failed(records)
    ]
    lines += [f"{skip.path} was left out: {skip.why}" for skip in skipped]
    lines += dict.fromkeys(note for record in records for note in record.notes)
    lines += [
        f"{incident['what']}: {incident['count']} ({record.id})"
        for record in records
        for incident in record.incidents
        if not record.elastic
    ]
    lines += dict.fromkeys(note for field in fields for judged in verdicts(field) for note in judged.notes)
    unsteady = [
        f"{record.id} is unsteady: {record.series.get('why') or 'its repeats do not agree'}"
        for record in records
        if _is_unsteady(record)
    ]
    lines += unsteady[:_MOST]
    if len(unsteady) > _MOST:
        more = len(unsteady) - _MOST
        lines.append(f"and {more} more unsteady run{'s' * (more != 1)}, in the records")
    if lines:
        items = tag("ul", "".join(text("li", line) for line in lines))
        yield section("Notes", "What a reader should know about these runs.", items)


def _why(record: Record) -> str:
    return (record.failure or "").strip() or "it has no rate"


def _is_unsteady(record: Record) -> bool:
    return record.verdict == "unsteady" and tables.is_judged(record)


def environments(records: Sequence[Record]) -> str:
    """Return the hardware and software of all runs, each combination once."""
    stacks: dict[str, Environment] = {json.dumps(r.environment, sort_keys=True): r.environment for r in records}
    blocks = []
    for stack in stacks.values():
        rows = tuple(
            (key.replace("_", " "), _fact(key, value)) for key, value in stack.items() if value not in ({}, "")
        )
        blocks.append(table(tables.Table(("fact", "value"), rows)))
    return section(
        "Machine", "What these runs ran on.", tag("details", text("summary", "Machine and versions") + "".join(blocks))
    )


def _fact(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    return f"{value / 1e9:.1f} GB" if key == "memory" and isinstance(value, int) else str(value)

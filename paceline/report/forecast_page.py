"""A page of a forecast: a map of workers x bandwidth colored by the winner, and sliders. Works offline.

Every number is computed in advance; the script of the page only looks numbers up.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path

from paceline.forecast.calibrate import Calibration
from paceline.forecast.records import unit_of
from paceline.forecast.study import Study, point_of, rate_of
from paceline.forecast.wording import with_unit
from paceline.measure.record.record import write
from paceline.report.palette import DARK, LIGHT, SERIES, variables
from paceline.workload.profile import StepProfile

USUAL = ("allreduce", "hierarchical_allreduce", "wfbp", "mg_wfbp", "bytescheduler", "dear")
FACTORS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)  # factors of the bandwidth of the forecast
BATCHES = (0.5, 1.0, 2.0)
MOST = 7  # numbers of workers
SAME = 0.99  # share of the best rate from which an earlier strategy in the list wins a cell
CELL, HIGH, LEFT = 92, 40, 130

Rates = list[list[list[list[float]]]]  # by strategy, workers, bandwidth, batch


def write_page(study: Study, path: Path, trust: str, tell: Callable[[str], None] = lambda line: None) -> Path:
    """Compute all numbers of the page and write it. `trust` says how far forecasts are off."""
    names = page_strategies(study)
    workers = _workers(study.workers)
    ports = [study.fabric.between.bandwidth * factor for factor in FACTORS]
    rates = compute(study, names, workers, ports, tell)
    write(path, page(study, names, workers, ports, rates, trust))
    return path


def page_strategies(study: Study) -> list[str]:
    """Return at most six strategies with the same result: the usual ones that the forecast has, then others."""
    sound = [p.strategy for p in study.at(study.workers[-1]) if p.same_result and not p.is_bound]
    usual = [name for name in USUAL if name in sound]
    return [*usual, *(name for name in sound if name not in usual)][: len(SERIES)]


def _workers(counts: Sequence[int]) -> list[int]:
    if len(counts) > 2:
        return list(counts[-MOST:])
    first = max(1, counts[-1] // 2 ** (MOST - 1))
    return [first * 2**k for k in range(MOST) if first * 2**k <= max(2, counts[-1])]


def compute(
    study: Study, names: Sequence[str], workers: Sequence[int], ports: Sequence[float], tell: Callable[[str], None]
) -> Rates:
    """Return the samples per second of every combination; 0 if a strategy does not exist for it."""
    rates: Rates = []
    for name in names:
        tell(f"computing {name}")
        rates.append([[[_rate(study, name, n, port, part) for part in BATCHES] for port in ports] for n in workers])
    return rates


def _rate(study: Study, name: str, workers: int, port: float, part: float) -> float:
    fabric = study.fabric.resized(workers)
    fabric = replace(fabric, between=replace(fabric.between, bandwidth=port))
    known = study.calibration
    batch = max(1, round(study.run.per_worker * part))
    run = study.run.with_(batch_size=batch)
    profile = scaled(known.profile, batch / study.run.per_worker)
    return rate_of(point_of(run, name, fabric, Calibration(profile, known.source), study.coding))


def scaled(profile: StepProfile, factor: float) -> StepProfile:
    """Return the times for another batch size: passes grow with it, the update does not."""
    return profile.model_copy(
        update={
            "forward": tuple(factor * time for time in profile.forward),
            "forward_seconds": factor * profile.forward_seconds,
            "ready": tuple(factor * time for time in profile.ready),
            "backward": factor * profile.backward,
        }
    )


def page(
    study: Study, names: Sequence[str], workers: Sequence[int], ports: Sequence[float], rates: Rates, trust: str
) -> str:
    """Return the page as one HTML file."""
    unit = unit_of(study.run.model)
    batches = [max(1, round(study.run.per_worker * part)) for part in BATCHES]
    labels = {
        "workers": [f"{count:,}" for count in workers],
        "bandwidth": [with_unit(port) for port in ports],
        "batch": [str(size) for size in batches],
    }
    data = {"strategies": list(names), "rates": rates, "labels": labels, "unit": unit}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    style, script = _style(), _read("forecast.js")
    policy = f"default-src 'none'; style-src {_hash(style)} 'unsafe-hashes'; script-src {_hash(script)}"
    starts = {"workers": len(workers) - 1, "bandwidth": FACTORS.index(1.0), "batch": BATCHES.index(1.0)}
    place = f"{study.fabric.ranks} workers per node"
    sources = [*(f"step of one worker: {study.calibration.source}",), *study.assumptions, trust]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>paceline forecast</title><style>{style}</style></head><body><main>",
            f"<h1>Forecast of {escape(study.run.model)}</h1>",
            f'<p class="soft">Simulated, not measured. Batch {study.run.per_worker} per worker, {place}.</p>',
            "<h2>Which strategy wins where</h2>",
            '<p class="soft">Bandwidth of a node against workers. All give the same result. Where a plainer strategy '
            "is within 1 %, it has the cell.</p>",
            strategy_map(names, labels["workers"], labels["bandwidth"], rates),
            _legend(names),
            "<h2>What if</h2>",
            *(_slider(name, len(labels[name]), starts[name]) for name in labels),
            '<div class="bars" id="bars" aria-live="polite"></div>',
            "<h2>What it relies on</h2><ul>",
            *(f"<li>{escape(line)}</li>" for line in sources),
            f'</ul></main><script type="application/json" id="data">{text}</script>',
            f"<script>{script}</script></body></html>\n",
        ]
    )


def winner(rates: Rates, w: int, b: int, s: int = 1) -> int | None:
    """Return the first strategy that is within one percent of the best, or None if there is none."""
    values = [strategy[w][b][s] for strategy in rates]
    best = max(values)
    return next(k for k, value in enumerate(values) if value >= SAME * best) if best > 0 else None


def strategy_map(names: Sequence[str], workers: Sequence[str], ports: Sequence[str], rates: Rates) -> str:
    """Return a chart of workers x bandwidth, whose cells have the color of the winner."""
    width, height = LEFT + CELL * len(workers), HIGH * (len(ports) + 2)
    cells = []
    for row, port in enumerate(reversed(ports)):
        b, y = len(ports) - 1 - row, HIGH * row
        cells.append(f'<text x="{LEFT - 10}" y="{y + 25}" text-anchor="end">{escape(port)}</text>')
        for w, count in enumerate(workers):
            k = winner(rates, w, b)
            fill = "var(--grid)" if k is None else f"var(--{SERIES[k]})"
            name = "none" if k is None else names[k]
            title = f"<title>{escape(f'{count} workers, {port}: {name}')}</title>"
            cells.append(
                f'<rect x="{LEFT + CELL * w}" y="{y}" width="{CELL}" height="{HIGH}" fill="{fill}">{title}</rect>'
            )
    foot = HIGH * len(ports) + 22
    cells += [
        f'<text x="{LEFT + CELL * w + CELL // 2}" y="{foot}" text-anchor="middle">{escape(count)}</text>'
        for w, count in enumerate(workers)
    ]
    cells.append(f'<text x="{LEFT + CELL * len(workers) // 2}" y="{foot + 24}" text-anchor="middle">workers</text>')
    label = "Winner for each number of workers and bandwidth of a port"
    return f'<svg class="map" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(cells)}</svg>'


def _legend(names: Sequence[str]) -> str:
    entries = [
        f'<li><svg class="dot" viewBox="0 0 1 1"><rect width="1" height="1" fill="var(--{color})"/></svg>'
        f"{escape(name)}</li>"
        for name, color in zip(names, SERIES, strict=False)
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _slider(name: str, count: int, value: int) -> str:
    return (
        f'<div class="slider"><label for="{name}">{name}</label>'
        f'<input type="range" id="{name}" min="0" max="{count - 1}" step="1" value="{value}">'
        f'<output id="{name}-value" for="{name}"></output></div>'
    )


def _style() -> str:
    dark = f"@media (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark; {variables(DARK)} }} }}"
    return f":root {{ color-scheme: light; {variables(LIGHT)} }} {dark} {_read('forecast.css')}"


def _read(name: str) -> str:
    return (files("paceline.report") / name).read_text()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

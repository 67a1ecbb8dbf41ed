"""The errors of forecasts on this machine, over configurations that were not used for calibration.

row        a configuration, its measured rate with interval, the forecast, and the naive forecast
group      rows of one model on one lab, to compare the forecast order of strategies with the measured one
interval   factors of a forecast between which the measured rates of 95 % of the rows lie
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.errors import WrongCommand
from paceline.files.read import read_text
from paceline.run.reference import is_bound

if TYPE_CHECKING:
    from paceline.forecast.study import Study

FILE = "certificate.json"
SCHEMA = 1
WIDEST = 0.05  # half width of a row's own interval; wider ones are measured again
SMALLEST, LARGEST = 1e-12, 1e30  # of a figure: samples per second, bytes per second
LEAST = 5  # fewest strategies of a group that can be ordered


@dataclass(frozen=True)
class Checked:
    """One configuration with its rates in samples per second. `kind` is lab (replayed compute) or real."""

    name: str
    kind: str
    group: str
    strategy: str
    model: str
    workers: int
    bandwidth: float  # bytes per second of a port; 0 without a network
    measured: float
    low: float
    high: float
    forecast: float
    naive: float
    cpu: float = 0.0  # busy part of the machine's cores
    attempts: int = 1

    @property
    def error(self) -> float:
        return abs(self.forecast / self.measured - 1)

    @property
    def naive_error(self) -> float:
        return abs(self.naive / self.measured - 1)

    @property
    def width(self) -> float:
        """Half of the measured interval, relative to the rate."""
        return (self.high - self.low) / 2 / self.measured

    @property
    def counts(self) -> bool:
        """Whether its measured interval is narrow enough. The forecast plays no part in this decision."""
        return self.width <= WIDEST


@dataclass(frozen=True)
class Certificate:
    """All rows of a check, and the errors computed from them."""

    rows: tuple[Checked, ...]
    machine: str = ""
    time: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def measured(self) -> tuple[Checked, ...]:
        return tuple(row for row in self.rows if row.counts)

    @property
    def unmeasured(self) -> tuple[Checked, ...]:
        return tuple(row for row in self.rows if not row.counts)

    def of(self, kind: str) -> tuple[Checked, ...]:
        return tuple(row for row in self.measured if row.kind == kind)

    def interval(self) -> tuple[float, float] | None:
        """Return two factors of a forecast between which 95 % of the measured rates lie; None below 5 rows."""
        ratios = sorted(row.measured / row.forecast for row in self.measured)
        if len(ratios) < LEAST:
            return None
        cut = int(0.025 * len(ratios))
        return ratios[cut], ratios[len(ratios) - 1 - cut]

    def groups(self) -> Mapping[str, list[Checked]]:
        """Return the rows of each model and lab whose strategies can be ordered."""
        groups: dict[str, list[Checked]] = {}
        for row in self.measured:
            groups.setdefault(row.group, []).append(row)
        return {name: rows for name, rows in groups.items() if len(rows) >= LEAST}

    def rank_correlation(self) -> float | None:
        """Return Kendall's tau between forecast and measured order, the median over groups."""
        taus = [kendall([r.forecast for r in rows], [r.measured for r in rows]) for rows in self.groups().values()]
        return median(taus) if taus else None

    def regret(self) -> float | None:
        """Return how much slower the strategy with the best forecast is than the true best; the median over groups."""
        regrets = []
        for rows in self.groups().values():
            advised = max(rows, key=lambda row: row.forecast)
            regrets.append(max(row.measured for row in rows) / advised.measured - 1)
        return median(regrets) if regrets else None

    def sentence(self) -> str:
        """Return one sentence about the certificate, which every forecast prints."""
        interval = self.interval()
        if interval is None:
            return f"certificate with {len(self.measured)} rows: too few for an interval; run --check to the end"
        low, high = interval
        errors = [row.error for row in self.measured]
        return (
            f"checked on this machine in {len(errors)} configurations: measured rates lie between {low:.2f} and "
            f"{high:.2f} of the forecast (95 %), median error {median(errors):.0%}, worst {max(errors):.0%}"
        )

    def extrapolations(self, study: Study) -> Iterator[str]:
        """Yield the assumptions of a forecast that no row has checked."""
        most = max((row.workers for row in self.measured), default=0)
        if study.workers and study.workers[-1] > most:
            yield f"{study.workers[-1]:,} workers; checked up to {most}"
        lines = [row.bandwidth for row in self.measured if row.bandwidth]
        port = study.fabric.between.bandwidth
        if study.fabric.nodes > 1 and port < inf and lines and not min(lines) * 0.99 <= port <= max(lines) * 1.01:
            yield f"{port * 8e-9:.3g} Gbit/s; checked between {min(lines) * 8e-9:.3g} and {max(lines) * 8e-9:.3g}"
        seen = {row.strategy for row in self.measured}
        fresh = [name for name in study.strategies if name not in seen and not is_bound(name)]
        if fresh:
            yield f"strategies {', '.join(fresh[:4])}{' and others' if len(fresh) > 4 else ''}"

    def to_json(self) -> str:
        values = {"schema": SCHEMA, "machine": self.machine, "time": self.time, "notes": list(self.notes)}
        return json.dumps({**values, "rows": [asdict(row) for row in self.rows]}, indent=1) + "\n"


def kendall(one: Sequence[float], two: Sequence[float]) -> float:
    """Return Kendall's tau: pairs in the same order minus pairs in opposite order, divided by all pairs that differ."""
    same = swapped = 0
    for (a, b), (c, d) in combinations(zip(one, two, strict=True), 2):
        product = (a - c) * (b - d)
        same, swapped = same + (product > 0), swapped + (product < 0)
    return (same - swapped) / (same + swapped) if same + swapped else 1.0


def _checked(row: Checked) -> Checked:
    """Return the row. Raises ValueError for fields that are not texts, and for rates that are impossible."""
    if not all(isinstance(text, str) for text in (row.name, row.kind, row.group, row.strategy, row.model)):
        raise ValueError("a name that is no text")
    numbers = (row.measured, row.forecast, row.naive, row.low, row.high, row.bandwidth, row.cpu, row.workers)
    if not all(type(number) in (int, float) and 0 <= number < LARGEST for number in numbers):
        raise ValueError("a figure that cannot be")
    if not (row.measured > SMALLEST and row.forecast > SMALLEST and row.low <= row.high):
        raise ValueError("a rate that is not above 0, or an interval without an inside")
    return row


def read_certificate(path: Path) -> Certificate | None:
    """Return the certificate in a folder of records, or None."""
    if not path.is_file():
        return None
    try:
        values: Any = json.loads(read_text(path))
        if values["schema"] != SCHEMA:
            raise ValueError(f"schema {values['schema']}")
        rows = tuple(_checked(Checked(**row)) for row in values["rows"])
        return Certificate(rows, str(values["machine"]), str(values["time"]), tuple(map(str, values["notes"])))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as problem:
        raise WrongCommand(
            f"{path} is no certificate", why=str(problem), remedy=f"remove it; paceline forecast --check writes {FILE}"
        ) from None

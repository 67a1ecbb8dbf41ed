"""A forecast for several strategies and numbers of workers on some machines, and results computed from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import log10

from paceline.errors import PacelineError, UnknownName, WrongCommand
from paceline.forecast.calibrate import Calibration
from paceline.forecast.fabric import Fabric
from paceline.forecast.job import CodingSeconds, Job, Members, Outlook, best_of
from paceline.forecast.machines import Machines
from paceline.run.axes import Axes
from paceline.run.compose.candidates import tried
from paceline.run.compose.compose import compose
from paceline.run.reference import REFERENCES, is_bound
from paceline.run.run import Run
from paceline.run.strategies import STRATEGIES
from paceline.strategy import compressors, exchanges, memberships, rules, schedules

REFERENCE = {"rule": "grad", "exchange": "allreduce", "schedule": "fusion", "compressor": "none"}
HALF = 0.5  # share of their own rate that further workers must add to pay off
NARROWEST, WIDEST = 1.25e5, 1.25e11  # bytes per second; the range that is searched for break-even bandwidths
CodingOf = Callable[[str], CodingSeconds]


def no_coding(compressor: str) -> CodingSeconds:
    return CodingSeconds()


@dataclass(frozen=True)
class Point:
    """One strategy on one number of workers: an outlook, or the reason why there is none."""

    strategy: str
    workers: int
    outlook: Outlook | None = None
    axes: Axes | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def same_result(self) -> bool:
        return self.axes is None or self.axes.same_result

    @property
    def is_bound(self) -> bool:
        """Whether this is a reference that bounds the strategies and never wins."""
        return is_bound(self.strategy)


@dataclass(frozen=True)
class Study:
    """All points of a forecast, strategy by strategy."""

    run: Run
    fabric: Fabric
    calibration: Calibration
    points: tuple[Point, ...]
    assumptions: tuple[str, ...] = ()
    coding: CodingOf = field(default=no_coding, compare=False)

    def of(self, strategy: str) -> list[Point]:
        return [point for point in self.points if point.strategy == strategy]

    @property
    def strategies(self) -> list[str]:
        return list(dict.fromkeys(point.strategy for point in self.points))

    @property
    def workers(self) -> list[int]:
        return sorted({point.workers for point in self.points})

    def at(self, workers: int) -> list[Point]:
        """Return the points that have an outlook at a number of workers, fastest first."""
        points = [point for point in self.points if point.workers == workers and point.outlook is not None]
        return sorted(points, key=lambda point: -rate_of(point))

    def knee(self, strategy: str) -> int | None:
        """Return the largest number of workers that pays: new workers add at least half of their own rate.

        Return None if every increase pays, or if there is only one number.
        """
        points = [point for point in self.of(strategy) if point.outlook is not None]
        for before, after in pairwise(points):
            assert before.outlook is not None
            assert after.outlook is not None
            alone = before.outlook.batch / before.outlook.compute
            added = after.outlook.rate - before.outlook.rate
            if added < HALF * alone * (after.workers - before.workers):
                return before.workers
        return None

    def break_even(self, one: str, two: str, workers: int) -> list[float]:
        """Return the bandwidths of a port, in bytes per second, at which two strategies are equally fast."""

        def lead(exponent: float) -> float:
            fabric = self.fabric.resized(workers)
            fabric = replace(fabric, between=replace(fabric.between, bandwidth=10**exponent))
            first, second = (self._step(name, fabric) for name in (one, two))
            return second - first

        low, high = log10(NARROWEST), log10(WIDEST)
        grid = [low + (high - low) * k / 12 for k in range(13)]
        leads = [lead(exponent) for exponent in grid]
        bandwidths = []
        for left, right, a, b in zip(grid, grid[1:], leads, leads[1:], strict=False):
            if a * b < 0 and min(abs(a), abs(b)) > 1e-9:
                bandwidths.append(10 ** _root(lead, left, right, a))
        return bandwidths

    def _step(self, strategy: str, fabric: Fabric) -> float:
        point = point_of(self.run, strategy, fabric, self.calibration, self.coding)
        if point.outlook is None:
            raise WrongCommand(f"{strategy} on {fabric.size} workers", why=point.problem)
        return point.outlook.step


def _root(lead: Callable[[float], float], left: float, right: float, at_left: float) -> float:
    for _ in range(14):
        middle = (left + right) / 2
        if lead(middle) * at_left > 0:
            left = middle
        else:
            right = middle
    return (left + right) / 2


def rate_of(point: Point) -> float:
    return 0.0 if point.outlook is None else point.outlook.rate


def study(
    run: Run,
    strategies: Sequence[str],
    workers: Sequence[int],
    fabric: Fabric,
    calibration: Calibration,
    *,
    coding: CodingOf = no_coding,
    assumptions: Sequence[str] = (),
) -> Study:
    """Forecast every strategy on every number of workers; `run` has all other settings."""
    points = tuple(
        point_of(run, strategy, fabric.resized(count), calibration, coding)
        for strategy in strategies
        for count in workers
    )
    return Study(run, fabric, calibration, points, tuple(assumptions), coding)


def point_of(run: Run, strategy: str, fabric: Fabric, calibration: Calibration, coding: CodingOf = no_coding) -> Point:
    """Forecast one strategy on one fabric. A refusal of compose becomes the problem of the point."""
    workers = fabric.size
    try:
        axes, notes = members_of(run, strategy, fabric)
    except PacelineError as problem:
        return Point(strategy, workers, problem=str(problem).splitlines()[0])
    members = Members(axes.rule, axes.exchange, axes.schedule, axes.compressor)
    if is_bound(strategy):
        fabric = replace(fabric, nodes=1, ranks=1)
    candidates = tried(axes)
    if candidates:
        members = replace(members, schedule=best_of(candidates, members, calibration.profile, fabric))
    job = Job(members, calibration.profile, fabric, coding(str(axes.compressor)), run.per_worker)
    outlook = job.outlook()
    if is_bound(strategy):
        outlook = replace(outlook, workers=workers, pace=((workers, 1 / outlook.step),), received=0.0)
    return Point(strategy, workers, outlook, axes, notes=notes)


def members_of(run: Run, strategy: str, fabric: Fabric) -> tuple[Axes, tuple[str, ...]]:
    """Return the members of a strategy on a fabric, and notes. A reference gets the members that behave like it."""
    if strategy in REFERENCES:
        return _axes(REFERENCE), ()
    placed = run.with_(workers=fabric.size, strategy=strategy, nodes=f"{fabric.nodes}x{fabric.ranks}", lab=None)
    composed = compose(placed, cluster=fabric.cluster)
    assert composed.axes is not None
    return composed.axes, composed.notes


def _axes(words: Mapping[str, str]) -> Axes:
    menus = {
        "rule": rules.MENU,
        "exchange": exchanges.MENU,
        "schedule": schedules.MENU,
        "compressor": compressors.MENU,
    }
    members = {axis: menus[axis].make(word) for axis, word in words.items()}
    return Axes(**members, membership=memberships.MENU.make("fixed"))


def chosen_strategies(text: str) -> list[str]:
    """Return the names in a comma-separated list. `all` means the references and every strategy."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return [*REFERENCES, *STRATEGIES]
    for name in names:
        if name not in (*STRATEGIES, *REFERENCES):
            raise UnknownName("strategy", name, ["all", *STRATEGIES, *REFERENCES])
    if not names:
        raise WrongCommand(f"--strategy {text!r}", why="it names no strategy", remedy="--strategy all")
    return list(dict.fromkeys(names))


def chosen_workers(text: str, most: int = 1 << 16) -> list[int]:
    """Read numbers of workers: one (64), several (8,16), or a range that doubles (8..1024)."""
    counts: list[int] = []
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        if not (first.isdecimal() and (last.isdecimal() or not dots) and len(first) + len(last) < 16):
            raise WrongCommand(
                f"--workers {text}", why="it is a number, a list, or a range", remedy="--workers 8..1024"
            )
        counts += _doubling(int(first), int(last or first))
    if not counts or min(counts) < 1 or max(counts) > most:
        raise WrongCommand(f"--workers {text}", why=f"a forecast has 1 to {most:,} workers", remedy="--workers 8..1024")
    return sorted(set(counts))


def _doubling(first: int, last: int) -> Iterator[int]:
    count = max(1, first) if first <= last else 0
    while 0 < count <= last:
        yield count
        count *= 2
    if first <= last and first != last and count // 2 != last:
        yield last
    if first == 0 or first > last:
        yield 0  # refused by the caller


PASSES = 4  # passes over memory that encoding or decoding a gradient takes on an accelerator


def assumed_coding(machines: Machines) -> tuple[CodingOf, str]:
    """Return the seconds of compressors on a device, as passes over its memory, and this assumption in words."""
    hardware = machines.hardware
    if hardware is None:
        return no_coding, "compressors are assumed to take no time; records of runs know better"
    each = PASSES / hardware["memory"]
    assumption = f"compressors: {PASSES} passes over the memory of {machines.device} for each gradient, an assumption"
    return (lambda compressor: CodingSeconds(each, each)), assumption

"""What a reader takes home, in words: who is ahead, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.bench.ranking import ranked
from paceline.bench.stats import ENOUGH, Interval
from paceline.report.fields import Field
from paceline.report.heats import ALONE
from paceline.report.standing import CHANGES, KINDS, SAME, Standing


def headline(field: Field) -> str:
    """One sentence about the largest world of a field."""
    return _verdict(field, field.worlds[-1])


def _verdict(field: Field, workers: int) -> str:
    best, *rivals = leaders(field, workers) or field.at(workers)[-1:]
    if not rivals:
        return f"{best.label}: {best.rate.centre:,.0f} {field.unit}/s on {_workers(workers)}."
    return _compared(best, _closest(best, rivals))


def leaders(field: Field, workers: int | None = None) -> list[Standing]:
    """Who may win, best first: ddp too, but not the limit, nor those who would need accuracy beside their rate.

    A few runs beside a race of enough rounds neither win it nor keep others from winning.
    """
    found = _runners(field, workers or field.worlds[-1])
    counted = _counted(found)
    return ranked(counted if len(counted) > 1 else found, rate=lambda s: s.rate.centre, beats=Standing.beats)


def _counted(found: Sequence[Standing]) -> list[Standing]:
    """Who took part in a race of enough rounds, or of as many as there are; or has starts enough without one."""
    full = {race for s in found for race, rounds in s.races.items() if rounds >= ENOUGH}
    return [s for s in found if len(s.rates) >= ENOUGH or (full & s.races.keys() if full else s.races)]


def _runners(field: Field, workers: int) -> list[Standing]:
    """Of the kind that says most: what was not measured does not compete with what was."""
    found = [s for s in field.at(workers, SAME) if s.reference != "limit"]
    kind = min((s.kind for s in found), key=KINDS.index, default="")
    return [s for s in found if s.kind == kind]


def _level(best: Standing, rivals: Sequence[Standing]) -> list[Standing]:
    return [rival for rival in rivals if not best.beats(rival)]


def _closest(best: Standing, rivals: Sequence[Standing]) -> Standing:
    """A winner beats every other; the first that it does not beat is the one to name."""
    return (_level(best, rivals) or rivals)[0]


def _compared(best: Standing, rival: Standing) -> str:
    ratio = best.against(rival)
    low, high = ratio.low, ratio.high
    starts = best.starts_against(rival)
    on = f"on {_workers(best.workers)}"
    if low is None or high is None or starts < ENOUGH:
        few = f"{starts} fresh start{'s' * (starts != 1)} of {best.label} and {rival.label}"
        return f"No verdict yet {on}: {few} {'is' if starts == 1 else 'are'} too few."
    if low <= 1:
        return f"No difference between {best.label} and {rival.label} that {starts} repeats can show {on}."
    return f"{best.label} is {_percent(ratio.centre)} faster than {rival.label} {on}."


def _percent(ratio: float) -> str:
    """Enough digits to tell it from nothing."""
    gain = 100 * (ratio - 1)
    return f"{gain:.0f} %" if gain >= 1.5 else f"{gain:.1f} %"


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def sentences(field: Field) -> Iterator[str]:
    """What stands below the headline: the verdicts of smaller worlds, then the largest one in detail."""
    for workers in reversed(field.worlds[:-1]):
        if len(leaders(field, workers)) > 1:
            yield _verdict(field, workers)
    order = leaders(field)
    if order:
        yield from _of_best(field, order[0], order[1:])
    yield from _changes(field, order[:1])
    yield from _aside(field)
    yield from _labels(field)


def _of_best(field: Field, best: Standing, rivals: Sequence[Standing]) -> Iterator[str]:
    yield from _sure(best, rivals)
    yield from _of_ddp(field, best, rivals)
    yield from _of_limit(field, best)
    yield from _scaling(field, best)
    yield from _waiting(best)


def _sure(best: Standing, rivals: Sequence[Standing]) -> Iterator[str]:
    """The interval behind the headline, and who else cannot be told from the best."""
    rival = _closest(best, rivals) if rivals else None
    ratio = None if rival is None else best.against(rival)
    if rival is None or ratio is None or ratio.low is None:
        return
    starts = best.starts_against(rival)
    over = f"{starts} fresh starts of each" if starts > 1 else "repeats inside one start of each"
    on = f"on {_workers(best.workers)}"
    yield f"{best.label} runs at {share(ratio)} of the rate of {rival.label} {on}; 95 % interval over {over}."
    more = [other.label for other in _level(best, rivals)[1:]]
    if more and starts >= ENOUGH:
        yield f"Nor can {best.label} be told from {', '.join(more)}."


def _of_ddp(field: Field, best: Standing, rivals: Sequence[Standing]) -> Iterator[str]:
    ddp = field.reference("ddp", best)
    if ddp is not None and ddp is not best and not (rivals and ddp is _closest(best, rivals)):
        yield f"{best.label} runs at {share(best.against(ddp))} of the rate of ddp."


def _of_limit(field: Field, best: Standing) -> Iterator[str]:
    limit = field.reference("limit", best)
    if limit is not None:
        yield f"{best.label} reaches {share(best.against(limit))} of the limit, the same steps with nothing exchanged."


def _scaling(field: Field, best: Standing) -> Iterator[str]:
    base, speedup = field.baseline, field.speedup(best)
    if base is not None and speedup is not None and best.workers > 1:
        alone = "one worker" if base.label == ALONE else f"one worker ({base.label})"
        efficiency = speedup.centre / best.workers
        yield f"Against {alone} it is {times(speedup)} as fast: {100 * efficiency:.0f} % of ideal scaling."


def _waiting(best: Standing) -> Iterator[str]:
    parts = best.last.breakdown
    if parts.get("step") and not best.reference:  # DDP waits inside backward
        yield f"Of its step, {100 * parts.get('exposed', 0.0) / parts['step']:.0f} % is waiting for other ranks."


def _changes(field: Field, best: Sequence[Standing]) -> Iterator[str]:
    """A rate of those with accuracy beside it; the others are only named."""
    found = field.at(field.worlds[-1], CHANGES)
    blind = []
    for standing in found:
        other = field.reference("ddp", standing) or next(iter(best), None)
        if other is None or other is standing or standing.accuracy is None or other.accuracy is None:
            blind.append(standing.label)
            continue
        mine, theirs = f"{standing.accuracy:.4f}", f"{other.accuracy:.4f}"
        if standing.updates != other.updates:
            mine, theirs = f"{mine} after {standing.updates} updates", f"{theirs} after {other.updates}"
        yield (
            f"{standing.label} runs at {share(standing.against(other))} of the rate of {other.label}, but changes "
            f"convergence: its accuracy is {mine} against {theirs}."
        )
    if blind:
        changes = "changes" if len(blind) == 1 else "change"
        yield f"{', '.join(blind)} {changes} convergence: a higher rate alone says nothing there."


def _aside(field: Field) -> Iterator[str]:
    """Runs that the verdict passes over."""
    workers = field.worlds[-1]
    named = {standing.label for standing in leaders(field, workers)}
    for standing in _runners(field, workers):
        if standing.label not in named:
            starts = len(standing.rates)
            few = "1 fresh start says" if starts == 1 else f"{starts} fresh starts say"
            yield f"{standing.label} is no part of this verdict: it was not in that race, and {few} too little."


def _labels(field: Field) -> Iterator[str]:
    for kind, meaning in (("replayed", "compute was timed waiting"), ("forecast", "nothing was run")):
        if any(standing.kind == kind for standing in field.standings):
            yield f"Figures marked {kind} are not measured: {meaning}."


def share(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{100 * ratio.centre:.0f} %"
    return f"{100 * ratio.centre:.0f} % [{100 * ratio.low:.0f}, {100 * ratio.high:.0f}]"


def times(ratio: Interval) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.centre:.2f} times"
    return f"{ratio.centre:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] times"

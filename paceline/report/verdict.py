"""What a reader takes home, in words: who is ahead, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.bench.stats import ENOUGH, Interval
from paceline.report.standing import CHANGES, SAME, Field, Standing


def headline(field: Field) -> str:
    """One sentence about the largest world of a field."""
    best = next(iter(leaders(field)), field.standings[-1])
    rivals = _rivals(field, best)
    if not rivals:
        return f"{best.label}: {best.rate.centre:,.0f} {field.unit}/s on {_workers(best.workers)}."
    # A winner beats every other; the first that it does not beat is the one to name.
    level = [rival for rival in rivals if not best.beats(rival)]
    return _compared(best, (level or rivals)[0])


def leaders(field: Field) -> list[Standing]:
    """Who may win, fastest first: ddp too, but not the limit, nor those who would need accuracy beside their rate.

    Of those whom nobody beats, that is: a mean over rounds that others do not have may be higher for no merit.
    """
    found = [s for s in field.at(field.worlds[-1], SAME) if s.reference != "limit"]
    found = [s for s in found if s.kind == "measured"] or found
    return sorted(found, key=lambda s: (any(other.beats(s) for other in found), -s.rate.centre))


def _rival(field: Field, best: Standing) -> Standing | None:
    return next(iter(_rivals(field, best)), None)


def _rivals(field: Field, best: Standing) -> list[Standing]:
    """Fastest first."""
    others = [
        s for s in field.at(best.workers, SAME) if s is not best and s.reference != "limit" and s.kind == best.kind
    ]
    return sorted(others, key=lambda s: -s.rate.centre)


def _compared(best: Standing, rival: Standing) -> str:
    ratio = best.against(rival)
    low, high = ratio.low, ratio.high
    starts = best.starts_against(rival)
    on = f"on {_workers(best.workers)}"
    if low is None or high is None or starts < ENOUGH:
        return f"No verdict yet: {starts} fresh start{'s' * (starts != 1)} of each contender are too few."
    if low <= 1:
        return f"No difference between {best.label} and {rival.label} that {starts} repeats can show {on}."
    return f"{best.label} is {_percent(ratio.centre)} faster than {rival.label} {on}."


def _percent(ratio: float) -> str:
    """Enough digits to tell it from nothing."""
    gain = 100 * (ratio - 1)
    return f"{gain:.0f} %" if gain >= 1.5 else f"{gain:.1f} %"


def _sure(field: Field, best: Standing) -> Iterator[str]:
    """The interval behind the headline."""
    rival = _rival(field, best)
    ratio = None if rival is None else best.against(rival)
    if rival is not None and ratio is not None and ratio.low is not None:
        starts = best.starts_against(rival)
        over = f"{starts} fresh starts of each" if starts > 1 else "repeats inside one start of each"
        yield f"{best.label} runs at {share(ratio)} of the rate of {rival.label}; 95 % interval over {over}."


def _workers(count: int) -> str:
    return f"{count} worker{'s' * (count != 1)}"


def sentences(field: Field) -> Iterator[str]:
    """What stands below the headline."""
    for best in leaders(field)[:1]:
        yield from _sure(field, best)
        yield from _of_ddp(field, best)
        yield from _of_limit(field, best)
        yield from _scaling(field, best)
        yield from _waiting(best)
    yield from _changes(field)
    yield from _labels(field)


def _of_ddp(field: Field, best: Standing) -> Iterator[str]:
    ddp = field.reference("ddp", best)
    if ddp is not None and ddp is not best and ddp is not _rival(field, best):
        yield f"{best.label} runs at {share(best.against(ddp))} of the rate of ddp."


def _of_limit(field: Field, best: Standing) -> Iterator[str]:
    limit = field.reference("limit", best)
    if limit is not None:
        yield f"{best.label} reaches {share(best.against(limit))} of the limit, the same steps with nothing exchanged."


def _scaling(field: Field, best: Standing) -> Iterator[str]:
    base = field.baseline
    if base is not None and best.workers > 1:
        speedup = best.against(base)
        efficiency = speedup.centre / best.workers
        yield (
            f"Against one worker ({base.label}) it is {times(speedup)} as fast: "
            f"{100 * efficiency:.0f} % of ideal scaling."
        )


def _waiting(best: Standing) -> Iterator[str]:
    parts = best.last.breakdown
    if parts.get("step") and not best.reference:  # DDP waits inside backward
        yield f"Of its step, {100 * parts.get('exposed', 0.0) / parts['step']:.0f} % is waiting for other ranks."


def _changes(field: Field) -> Iterator[str]:
    found = field.at(field.worlds[-1], CHANGES)
    if found:
        names = ", ".join(standing.label for standing in found)
        yield f"{names} change{'s' * (len(found) == 1)} convergence: a higher rate alone says nothing there."


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

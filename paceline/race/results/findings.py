"""Sentences below the headline of a verdict: ddp, limit, scaling, waiting, and strategies that change convergence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paceline.race.results.fields import Field
from paceline.race.results.heats import ALONE
from paceline.race.results.standing import CHANGES, Standing
from paceline.race.results.wording import listed, times
from paceline.run.reference import DDP, LIMIT

NOT_MEASURED = {"replayed": "compute was a timed wait", "forecast": "nothing was run"}


def findings(field: Field, workers: int, order: Sequence[Standing]) -> Iterator[str]:
    """Yield findings about the best contender, if there is one, then about those that change convergence."""
    for best in order[:1]:
        yield from _over_next(best, order[1:])
        yield from _over_ddp(field, best, alone=len(order) == 1)
        yield from _under_limit(field, best)
        yield from _scaling(field, best)
        yield from _waiting(best)
    for standing in field.at(workers, CHANGES):
        yield _change(standing, field.reference(DDP, standing) or next(iter(order), None))
    yield from _kinds(field)


def ddp_beside(field: Field, best: Standing) -> Standing | None:
    """Return ddp if it raced beside the best contender, in the same kind of run; None if it is the best itself."""
    ddp = field.reference(DDP, best)
    return None if ddp is None or ddp is best or ddp.kind != best.kind else ddp


def _over_next(best: Standing, rivals: Sequence[Standing]) -> Iterator[str]:
    """Compare the best with the first contender that is surely slower, if another one ties with the best.

    The headline has the ratio to ddp.
    """
    slower = [rival for rival in rivals if best.beats(rival)]
    others = [rival for rival in slower if rival.reference != DDP]
    if others and len(slower) < len(rivals):
        yield f"{best.label} runs at {times(best.against(others[0]), f'the rate of {others[0].label}')}."


def _over_ddp(field: Field, best: Standing, *, alone: bool) -> Iterator[str]:
    """Compare the best with ddp where the headline does not: no other contender, or ddp in another kind of run."""
    ddp = field.reference(DDP, best)
    if ddp is not None and ddp is not best and (alone or ddp.kind != best.kind):
        yield f"{best.label} runs at {times(best.against(ddp), 'the rate of ddp')}."


def _under_limit(field: Field, best: Standing) -> Iterator[str]:
    limit = field.reference(LIMIT, best)
    if limit is None:
        return
    ratio = best.against(limit)
    yield f"{best.label} runs at {times(ratio, 'the rate of the limit, which exchanges nothing')}."
    if ratio.centre > 1:
        sure = ratio.low is not None and ratio.low > 1
        why = "the limit waits at a barrier after every step, and this strategy does not" if sure else "that is noise"
        yield f"More than the limit: {why}."


def _scaling(field: Field, best: Standing) -> Iterator[str]:
    base, speedup = field.baseline, field.speedup(best)
    if base is not None and speedup is not None and best.workers > 1:
        alone = ALONE if base.label == ALONE else f"{ALONE} ({base.label})"
        efficiency = 100 * speedup.centre / best.workers
        yield f"{best.label} runs at {times(speedup, f'the rate of {alone}')}: {efficiency:.0f} % of ideal scaling."


def _waiting(best: Standing) -> Iterator[str]:
    parts = best.last.breakdown
    if parts.get("exposed") is not None and parts.get("step") and not best.reference:  # not separable for ddp
        yield f"{best.label} spends {100 * parts['exposed'] / parts['step']:.0f} % of a step waiting for other ranks."


def _change(standing: Standing, beside: Standing | None) -> str:
    """Return a rate with its accuracy or loss; such a contender never wins."""
    if beside is None or beside is standing:
        return f"{standing.label} changes convergence: a rate alone says nothing."
    rate = times(standing.against(beside), f"the rate of {beside.label}")
    start = f"{standing.label} runs at {rate} but changes convergence:"
    if standing.accuracy is not None and beside.accuracy is not None:
        return f"{start} its accuracy is {_against(standing, standing.accuracy, beside, beside.accuracy, 4)}."
    if standing.loss is None or beside.loss is None:
        return f"{start} no winner without accuracy."
    loss = _against(standing, standing.loss, beside, beside.loss, 3)
    return f"{start} no winner without accuracy (training loss {loss})."


def _against(standing: Standing, mine: float, beside: Standing, theirs: float, digits: int) -> str:
    """Return two training figures, each with its number of updates if these differ."""
    if standing.updates == beside.updates:
        return f"{mine:.{digits}f} against {theirs:.{digits}f}"
    after = f"after {standing.updates} updates"
    return f"{mine:.{digits}f} {after} against {theirs:.{digits}f} after {beside.updates}"


def _kinds(field: Field) -> Iterator[str]:
    for kind, meaning in NOT_MEASURED.items():
        names = dict.fromkeys(standing.name for standing in field.standings if standing.kind == kind)
        if names:
            yield f"Rates of {listed(list(names))} marked {kind} are not measured: {meaning}."

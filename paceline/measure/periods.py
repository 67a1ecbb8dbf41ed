"""Periods of a rule: if it exchanges only every few steps, whole periods are timed, never a part of one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from paceline.measure.record.record import Record
from paceline.run.compose.compose import axes_of
from paceline.run.run import Run

STEPS = 10  # steps of a block, if the run does not say


def period_of(run: Run) -> int:
    """Return the number of steps after which a rule repeats.

    A rule that averages every 8 steps is judged in units of 8 steps.
    """
    return math.lcm(*intervals(run))


def intervals(run: Run) -> list[int]:
    """Return the steps between exchanges, one number for each kind of exchange."""
    return [1] if run.reference else list(axes_of(run).rule.intervals)


def in_periods(run: Run) -> Run:
    """Return the run with warm-up and blocks of whole periods of its rule, and about as many steps in all as before."""
    period = period_of(run)
    if period == 1 or run.epochs is not None:
        return run
    steps = run.steps or STEPS
    length = math.ceil(steps / period) * period
    warmup = math.ceil(max(1, run.warmup) / period) * period
    return run.with_(steps=length, warmup=warmup, repeats=max(1, math.ceil(steps * run.repeats / length)))


def is_uneven(record: Record, period: int) -> bool:
    """Return whether blocks are not whole periods of the rule, so that the rate has a wrong share of exchanges."""
    blocks, steps = record.rate["total"].get("repeats") or [0.0], record.series.get("seconds") or []
    return record.workers > 1 and len(steps) // len(blocks) % period != 0


def uneven(run: Run, warm: int, blocks: int, length: int) -> Iterator[str]:
    """Yield a note if the measured steps hold too few exchanges, or too many."""
    period = period_of(run)
    if run.workers == 1 or length % period == 0:
        return
    rule, remedy = axes_of(run).rule, f"blocks of {math.ceil(length / period) * period} steps would hold whole periods"
    measured = range(warm + 1, warm + blocks * length + 1)
    if not any(step % every == 0 for step in measured for every in intervals(run)):
        yield f"rule {rule} did not exchange in the {len(measured)} measured steps: this is the rate without; {remedy}"
    else:
        yield f"rule {rule} exchanges too often or too seldom in blocks of {length} steps; {remedy}"

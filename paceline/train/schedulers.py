"""The learning-rate schedulers of an optimizer, whose state a new member of an elastic job needs as well.

torch keeps no list of them: a scheduler knows its optimizer, not the other way round. So they are looked up among the
objects of this process, once, when a member enters its first group. All members run the same script, so that their
schedulers match by class and settings.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from paceline.errors import WrongCommand
from paceline.files.snapshot import check_state

MOVING = ("last_epoch", "best", "num_bad_epochs", "cooldown_counter", "T_cur", "T_i")  # what a scheduler changes


def schedulers_of(optimizer: Optimizer) -> list[LRScheduler]:
    """Return the schedulers of an optimizer, without those that are parts of another one, in the same order everywhere.

    They are sorted by class, and those of one class by their settings.
    """
    return sorted(_search(optimizer), key=lambda one: (type(one).__qualname__, _settings(one)))


def _settings(scheduler: LRScheduler) -> str:
    state = scheduler.state_dict()
    return repr(sorted((key, str(state[key])) for key in state if key not in MOVING and not key.startswith("_")))


def _search(optimizer: Optimizer) -> list[LRScheduler]:
    # type() instead of isinstance(): the latter asks an object for its __class__, and a proxy may load something then.
    every: Iterable[Any] = (thing for thing in gc.get_objects() if issubclass(type(thing), LRScheduler))
    mine = [one for one in every if getattr(one, "optimizer", None) is optimizer]
    parts = {id(part) for one in mine for part in getattr(one, "_schedulers", ())}
    return [one for one in mine if id(one) not in parts]


def states_of(schedulers: Sequence[LRScheduler]) -> list[Any]:
    """Return the states of schedulers; None for one whose state is not plain values, with a warning."""
    return [_state_of(scheduler) for scheduler in schedulers]


def _state_of(scheduler: LRScheduler) -> Any:
    state = scheduler.state_dict()
    try:
        check_state(state)
    except WrongCommand as problem:
        print(
            f"paceline: the state of {type(scheduler).__name__} does not travel to new workers: {problem}",
            file=sys.stderr,
            flush=True,
        )
        return None
    return state


def restore(schedulers: Sequence[LRScheduler], states: Sequence[Any]) -> None:
    """Load the states that another member, or a checkpoint, has of the same schedulers."""
    if len(schedulers) != len(states):
        raise WrongCommand(
            f"a worker with {len(schedulers)} learning-rate schedulers",
            why=f"the state that it gets has those of {len(states)}",
            remedy="make schedulers before the first batch, in all workers alike",
        )
    for scheduler, state in zip(schedulers, states, strict=True):
        if state is not None:
            scheduler.load_state_dict(state)

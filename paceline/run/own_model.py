"""Build a model of the user once before any worker starts, so that its mistakes are reported once and early."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paceline.errors import PacelineError, WrongCommand
from paceline.menu.grammar import parse
from paceline.run.run import SHAPES, Run
from paceline.workload import sources


def check_own_models(runs: Iterable[Run], fit: Mapping[str, int] | None = None) -> None:
    """Refuse a function of the user that raises, or returns something that cannot be trained.

    Only models of the user are built; for all others torch is not loaded. `fit` holds the arguments that make a model
    fit the samples; if it is None, they are read from the source.
    """
    different = {(run.model, run.source, *(getattr(run, name) for name in SHAPES)): run for run in runs}
    for run in different.values():
        if _is_own(run.model):
            _check(run, fit)


def _is_own(model: str) -> bool:
    place, colon, _ = parse(model).word.partition(":")
    return bool(colon) and place != "torchvision"


def _check(run: Run, fit: Mapping[str, int] | None) -> None:
    from paceline.workload.resolve import build

    fit = sources.MENU.make(run.source).fit() if fit is None else fit
    try:
        build(run.model, **{name: getattr(run, name) for name in SHAPES}, fit=fit)
    except WrongCommand:
        raise
    except PacelineError as problem:
        raise WrongCommand(problem.what, why=problem.why, remedy=problem.remedy or _alone(run.model)) from problem
    except Exception as problem:
        why = f"it raised {type(problem).__name__}: {problem}{_line(problem)}"
        raise WrongCommand(f"model {run.model}", why=why, remedy=_alone(run.model)) from problem


def _alone(model: str) -> str:
    module, _, function = parse(model).word.partition(":")
    return f'python -c "import {module}; print({module}.{function}())"'


def _line(problem: Exception) -> str:
    """Return the file and line where the error was raised."""
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})"

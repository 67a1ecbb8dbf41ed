"""paceline strategies: the named strategies, and the axes behind each."""

from __future__ import annotations

import json as jsons
import shlex
from collections.abc import Iterator
from dataclasses import asdict

from paceline.cli import app
from paceline.cli import options as o
from paceline.measure.record.record import check_writable, write
from paceline.run.reference import REFERENCES
from paceline.run.strategies import STRATEGIES, Strategy


@app.command()
def strategies(json: o.JsonFile = None) -> None:
    """List the strategies: what each stands for, when to choose it, and whether it gives the result of all-reduce."""
    if json is not None:
        check_writable(json)
        write(json, jsons.dumps([asdict(strategy) for strategy in STRATEGIES.values()], indent=1) + "\n")
    for same, title in ((True, "the same result as all-reduce"), (False, "changes convergence: compare accuracy too")):
        print(title)
        for strategy in STRATEGIES.values():
            if strategy.same_result is same:
                print(f"  {strategy.name}")
                for line in _lines(strategy):
                    print(f"    {line}")
        print()
    print(f"references beside them: {', '.join(REFERENCES)}")


def _lines(strategy: Strategy) -> Iterator[str]:
    yield strategy.stands_for
    yield flags(strategy)
    if strategy.across:
        yield f"on several nodes: --exchange {shlex.quote(strategy.across)}"
    yield f"choose it {strategy.choose}"
    others = [twin.name for twin in STRATEGIES.values() if twin.axes == strategy.axes and twin is not strategy]
    if others:
        yield f"the same under another name: {', '.join(others)}"


def flags(strategy: Strategy) -> str:
    """Return the axes of a strategy as flags to paste: rule and exchange, and others that are not the default."""
    shown = {"--rule": strategy.rule, "--exchange": strategy.exchange}
    rest = {"--schedule": "schedule", "--compressor": "compressor", "--membership": "membership"}
    for flag, axis in rest.items():
        text = getattr(strategy, axis)
        if text != getattr(Strategy, axis):
            shown[flag] = text
    return " ".join(f"{flag} {shlex.quote(text)}" for flag, text in shown.items())

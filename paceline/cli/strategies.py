"""paceline strategies: the names people know, and the axes behind them."""

from __future__ import annotations

import json as jsons
import shlex
from dataclasses import asdict

from paceline.cli import app
from paceline.cli import options as o
from paceline.record import check_writable, write
from paceline.run import REFERENCES
from paceline.strategies import STRATEGIES, Strategy


@app.command()
def strategies(json: o.JsonFile = None) -> None:
    """List the strategies, what they stand for, and whether they give the same result as all-reduce."""
    if json is not None:
        check_writable(json)
        write(json, jsons.dumps([asdict(strategy) for strategy in STRATEGIES.values()], indent=1) + "\n")
    for same, title in ((True, "the same result as all-reduce"), (False, "changes convergence: compare accuracy too")):
        print(title)
        for strategy in STRATEGIES.values():
            if strategy.same_result is same:
                print(f"  {strategy.name}\n    {strategy.stands_for}\n    {flags(strategy)}")
                if strategy.across:
                    print(f"    on several nodes: --exchange {shlex.quote(strategy.across)}")
        print()
    print(f"references beside them: {', '.join(REFERENCES)}")


def flags(strategy: Strategy) -> str:
    """The axes behind a name, as flags to paste: rule and exchange always, others where they are not the usual."""
    given = {"--rule": strategy.rule, "--exchange": strategy.exchange}
    rest = {"--schedule": "schedule", "--compress": "compressor", "--membership": "membership"}
    for flag, axis in rest.items():
        text = getattr(strategy, axis)
        if text != getattr(Strategy, axis):
            given[flag] = text
    return " ".join(f"{flag} {shlex.quote(text)}" for flag, text in given.items())

"""paceline strategies: the names people know, and the axes behind them."""

from __future__ import annotations

import json as jsons
from dataclasses import asdict

from paceline.cli import app
from paceline.cli import options as o
from paceline.cli.show import table
from paceline.record import check_writable, write
from paceline.strategies import REFERENCES, STRATEGIES


@app.command()
def strategies(json: o.JsonFile = None) -> None:
    """List the strategies, what they stand for, and whether they give the same result as all-reduce."""
    if json is not None:
        check_writable(json)
        write(json, jsons.dumps([asdict(strategy) for strategy in STRATEGIES.values()], indent=1) + "\n")
    rows = [
        (s.name, s.rule, s.exchange, s.schedule, s.compressor, "yes" if s.same_result else "no")
        for s in STRATEGIES.values()
    ]
    for line in table(("strategy", "rule", "exchange", "schedule", "compressor", "same result"), rows):
        print(line)
    print()
    for strategy in STRATEGIES.values():
        print(f"{strategy.name:12} {strategy.stands_for}")
    print(f"\nreferences beside them: {', '.join(REFERENCES)}")

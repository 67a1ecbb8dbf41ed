"""paceline strategies says when to choose which, and which are the same."""

import pytest

from paceline.cli import main
from paceline.run.strategies import STRATEGIES


@pytest.fixture
def lines(capsys):
    with pytest.raises(SystemExit):
        main(["strategies"])
    return capsys.readouterr().out.splitlines()


def test_every_strategy_says_when_to_choose_it(lines):
    assert sum(line.startswith("    choose it ") for line in lines) == len(STRATEGIES)
    assert max(map(len, lines)) <= 80


def test_strategies_with_the_same_axes_name_each_other(lines):
    after = lines[lines.index("  replicated") :]
    assert next(line for line in after if "another name" in line).endswith(": allreduce")
    assert sum("the same under another name" in line for line in lines) == 4

"""A short campaign of what `make fuzz` does with 5,000 cases."""

import pytest

from paceline.errors import WrongCommand
from tests.fuzz import campaign as fuzz
from tests.fuzz.targets import TARGETS

CASES = 25


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_input_is_read_or_refused_in_words(name):
    result = fuzz.campaign(CASES, seed=20261117, only=name)
    assert result.failures == []
    assert result.growth <= fuzz.GROWTH
    assert result.accepted[name] + result.refused[name] == CASES
    assert result.accepted[name], "cases that are all refused reach nothing behind the first check"


@pytest.mark.timeout(20)
def test_a_campaign_finds_errors_hangs_nonsense_and_growth(monkeypatch):
    """The negative control of the checks above."""
    kept = []

    def hang(dice, folder):
        while True:
            pass

    def nonsense(dice, folder):
        assert dice.random() > 1

    def refuse(dice, folder):
        raise WrongCommand("no")

    def grow(dice, folder):
        kept.append(bytearray(b"x" * (300 << 20)))

    broken = {"error": lambda dice, folder: {}["x"], "hang": hang, "nonsense": nonsense, "refuse": refuse}
    monkeypatch.setattr(fuzz, "TARGETS", broken)
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    found = {name: fuzz.campaign(1, seed=1, only=name) for name in broken}
    assert [name for name, result in found.items() if not result.good] == ["error", "hang", "nonsense"]
    monkeypatch.setattr(fuzz, "TARGETS", {"refuse": refuse, "grow": grow})
    monkeypatch.setattr(fuzz, "SECONDS", 5.0)
    assert not fuzz.campaign(2, seed=1).good

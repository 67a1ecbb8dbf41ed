"""The page of combinations is what compose says."""

from pathlib import Path

from paceline.run.combinations_page import page, refusals

PAGE = Path(__file__).parents[2] / "docs" / "combinations.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m paceline.run.combinations_page > docs/combinations.md"


def test_a_pair_that_is_refused_has_its_reason():
    assert refusals({"rule": "grad", "exchange": "allreduce"}) == []
    assert "leaves them different" in refusals({"rule": "grad", "exchange": "neighbor"})[0]

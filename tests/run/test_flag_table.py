"""The page about flags is what the fields of Run say."""

from pathlib import Path

from paceline.run.flag_table import page

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "flags.md"


def test_the_page_about_flags_is_current():
    assert PAGE.read_text() == page(), "run: python -m paceline.run.flag_table > docs/howto/flags.md"

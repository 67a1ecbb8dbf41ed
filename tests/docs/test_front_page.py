"""The race at the top of the README is made by a script from records."""

import importlib.util
from pathlib import Path

from paceline.measure.record.store import open_store
from tests.report.samples import race

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("front_page", ROOT / "benchmarks" / "front_page.py")
front_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(front_page)


def test_the_block_has_a_line_per_contender_and_the_verdict():
    records = race(worlds=(1, 2), strategies=("limit", "ddp", "allreduce"))
    lines = front_page.block(records)
    assert lines[0] == "mobilenet_v2, batch 64 per worker, 2 workers, 5 fresh starts of each"
    assert [line.split()[0] for line in lines[1:4]] == ["limit", "allreduce", "ddp"]
    assert lines[4].startswith("allreduce wins on 2 workers: ")
    assert front_page.has_winner(records)
    assert max(map(len, lines)) <= 100


def test_a_tie_has_no_winner():
    assert not front_page.has_winner(race(worlds=(2,), strategies=("limit", "ddp"), starts=2))


def test_only_the_lines_of_the_section_change():
    text = (ROOT / "README.md").read_text()
    assert (text.count(front_page.BEGIN), text.count(front_page.END)) == (1, 1)
    new = front_page.replaced(text, ["a race"])
    assert "```text\na race\n```" in new
    assert new.partition(front_page.BEGIN)[0] == text.partition(front_page.BEGIN)[0]
    assert new.partition(front_page.END)[2] == text.partition(front_page.END)[2]


def test_the_block_in_the_readme_is_that_of_the_kept_records():
    records = [stored.record for stored in open_store([front_page.RECORDS]).records]
    text = (ROOT / "README.md").read_text()
    assert "\n".join(front_page.block(records)) in text
    assert "\n".join(front_page.block(records[:-6])) not in text  # other records make another block

"""The tables of labs in the page about published results agree with the kept figures."""

import copy
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("lab_tables", ROOT / "benchmarks" / "lab_tables.py")
lab_tables = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(lab_tables)


def test_the_page_quotes_the_kept_figures():
    contents = lab_tables.kept()
    assert set(contents) == {"bluefog", "dlaas"}
    text = lab_tables.PAGE.read_text()
    assert lab_tables.replaced(text, contents) == text, "run python benchmarks/lab_tables.py"


def test_another_figure_is_noticed():
    """The control: one figure of the records differs from the page."""
    contents = copy.deepcopy(lab_tables.kept())
    contents["bluefog"]["sheets"][0]["cells"][1]["ratio"]["centre"] += 0.01
    text = lab_tables.PAGE.read_text()
    assert lab_tables.replaced(text, contents) != text


def test_every_figure_names_its_records():
    for content in lab_tables.kept().values():
        for cell in (cell for sheet in content["sheets"] for cell in sheet["cells"]):
            assert len(cell["records"]) == len(set(cell["records"])) >= cell["ratio"]["starts"] >= 1

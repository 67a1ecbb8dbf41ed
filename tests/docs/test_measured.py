"""The figures in docs/howto/measure.md are those of the results that are kept beside it."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def race_power(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("race_power", ROOT / "benchmarks" / "race_power.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "race_power", module)
    spec.loader.exec_module(module)
    return module


def kept(race_power):
    return json.loads(race_power.RECORD.read_text())


def test_the_page_has_the_figures_of_the_kept_results(race_power):
    text, results = race_power.PAGE.read_text(), kept(race_power)
    assert race_power.replaced(text, race_power.page(results)) == text
    changed = json.loads(json.dumps(results).replace("0.0", "0.1"))
    assert race_power.replaced(text, race_power.page(changed)) != text  # the comparison above can fail


def test_the_kept_ratio_is_that_of_the_kept_widths(race_power):
    power = kept(race_power)["power"]
    median = race_power.median
    widths = [median(power["half_widths"][kind]) for kind in ("isolated", "turns")]
    assert power["ratio"] == pytest.approx(widths[0] / widths[1])


def test_an_interval_that_is_wide_or_excludes_1_is_named(race_power):
    def row(low, high):
        return {"agreement": {"centre": math.sqrt(low * high), "low": low, "high": high}}

    lines = list(race_power._judged({"a": row(0.97, 1.02), "b": row(0.8, 1.2), "c": row(1.01, 1.04)}))
    assert lines == ["Different: c.", "Wider than plus or minus 5 %, so not decided: b."]


def test_results_are_kept_with_the_machine_and_written_into_the_page(race_power, tmp_path, monkeypatch):
    monkeypatch.setattr(race_power, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(race_power, "RECORD", tmp_path / "records" / "results.json")
    race_power.PAGE.write_text(f"before\n\n{race_power.BEGIN}old\n\n{race_power.END}\n\nafter\n")
    power = {"half_widths": {"turns": [0.02, 0.04], "isolated": [0.1, 0.2]}, "ratio": 5.0, "minutes": 1.5}
    row = {
        "turns": [0.1, 0.11, 0.12],
        "isolated": [0.1, 0.12, 0.14],
        "agreement": {"centre": 0.99, "low": 0.96, "high": 1.02, "confidence": 0.95},
        "fits": True,
    }
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, value in zip(files, (power, {"mlp": row}), strict=True):
        path.write_text(json.dumps(value))
    race_power.publish(files)
    lines = race_power.PAGE.read_text().splitlines()
    assert lines[0] == "before"
    assert lines[-1] == "after"
    assert "old" not in lines
    assert "| mlp | 1.116 [1.089, 1.144] | 1.127 [1.073, 1.185] | 0.990 [0.960, 1.020] | 3 |" in lines
    assert "All intervals of the fourth column contain 1." in lines
    assert not any("not decided" in line for line in lines)
    assert "15.0 % by isolated starts. Turns are 5.0 times narrower." in lines
    assert kept(race_power)["machine"]["cores"] >= 1

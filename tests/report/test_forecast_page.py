"""The page of a forecast: a map, sliders, nothing from outside."""

import json
import re

import pytest

from paceline.forecast.calibrate import calibrate
from paceline.forecast.machines import read_machines
from paceline.forecast.study import study
from paceline.report.forecast_page import BATCHES, FACTORS, page_strategies, strategy_map, winner, write_page
from paceline.run.run import Run
from tests.report.browser import Browser, is_there

PAPER = "return getComputedStyle(document.body).backgroundColor"
BARS = "return document.getElementById('bars').textContent"
MOVE = "const s = document.getElementById('bandwidth'); s.value = 0; s.dispatchEvent(new Event('input'))"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    machines = read_machines("machines(nodes=4, ranks=2, bandwidth=1gbit)")
    known = calibrate("mlp", step=0.01, batch=8)
    run = Run(model="mlp", batch_size=8)
    points = study(run, ["allreduce", "bsp", "wfbp", "local_sgd"], [2, 4, 8], machines.fabric(), known)
    return write_page(points, tmp_path_factory.mktemp("page") / "page.html", "no <certificate> & none")


def test_the_page_holds_every_number_and_loads_nothing(page):
    text = page.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    assert data["strategies"] == ["allreduce", "wfbp", "bsp"]  # what changes convergence is left out
    assert [len(side) for side in data["labels"].values()] == [3, len(FACTORS), len(BATCHES)]
    assert all(rate > 0 for a in data["rates"] for b in a for c in b for rate in c)
    assert "http://" not in text
    assert "https://" not in text
    assert "no &lt;certificate&gt; &amp; none" in text


def test_the_plainer_of_two_equal_strategies_has_the_cell():
    rates = [[[[0, 99.5, 0]]], [[[0, 100.0, 0]]]]
    assert winner(rates, 0, 0) == 0
    assert winner([[[[0, 90.0, 0]]], [[[0, 100.0, 0]]]], 0, 0) == 1
    assert winner([[[[0, 0.0, 0]]]], 0, 0) is None
    assert strategy_map(["a", "b"], ["8"], ["1 Gbit/s"], rates).count("<rect") == 1


def test_at_most_six_strategies_are_drawn():
    machines = read_machines("machines(nodes=2, ranks=2)")
    names = ["bsp", "wfbp", "mg_wfbp", "dear", "allreduce", "horovod", "p3", "bytescheduler"]
    points = study(Run(model="mlp"), names, [4], machines.fabric(), calibrate("mlp", step=0.01))
    assert page_strategies(points)[:4] == ["allreduce", "wfbp", "mg_wfbp", "bytescheduler"]
    assert len(page_strategies(points)) == 6


@pytest.mark.root
def test_in_a_browser_it_is_quiet_fits_and_sliders_move(page):
    if not is_there():
        pytest.skip("chromium and chromedriver are missing. try: apt-get install chromium chromium-driver")
    papers = {}
    with Browser() as browser:
        for scheme in ("light", "dark"):
            for width, height in ((1280, 900), (390, 844)):
                browser.look(width, height, scheme)
                browser.open(page)
                assert browser.requests() == [page.as_uri()]
                assert browser.console() == []
                assert browser.run("return document.documentElement.scrollWidth") <= width
                papers[scheme] = browser.run(PAPER)
        before = browser.run(BARS)
        browser.run(MOVE)
        assert browser.run(BARS) != before
        assert browser.console() == []
    assert papers["light"] != papers["dark"]

"""The page in a real browser: quiet console, no request, both themes, desktop and phone."""

import pytest

from paceline.report.page import write_report
from tests.report.browser import Browser, is_there
from tests.report.samples import events, race

pytestmark = pytest.mark.root

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
WIDTH = "return document.documentElement.scrollWidth"
PAPER = "return getComputedStyle(document.body).backgroundColor"
FILL = "return getComputedStyle(document.querySelector('.chart.wide text')).fill"


@pytest.fixture
def page(tmp_path):
    records = race(worlds=(1, 2))
    seen = {entry.id: events() for entry in records if entry.workers == 2}
    return write_report(records, tmp_path / "report.html", events=seen)


@pytest.fixture
def browser():
    if not is_there():
        pytest.skip("chromium and chromedriver are missing. try: apt-get install chromium chromium-driver")
    with Browser() as opened:
        yield opened


def test_the_page_is_quiet_fits_and_follows_the_theme(browser, page, tmp_path):
    papers = {}
    for scheme in ("light", "dark"):
        for name, (width, height) in SIZES.items():
            browser.look(width, height, scheme)
            browser.open(page)
            assert browser.requests() == [page.as_uri()]
            assert browser.console() == []
            assert browser.run(WIDTH) <= width, f"{name} scrolls sideways"
            papers[scheme] = browser.run(PAPER), browser.run(FILL)
            browser.screenshot(tmp_path / f"{scheme}-{name}.png")
            assert (tmp_path / f"{scheme}-{name}.png").stat().st_size > 10_000
    assert papers["light"][0] == "rgb(255, 255, 255)"
    assert papers["light"][0] != papers["dark"][0]
    assert papers["light"][1] != papers["dark"][1], "charts do not follow the theme"


def test_the_switch_turns_the_theme_around_and_commands_can_be_copied(browser, page):
    browser.look(1280, 900, "light")
    browser.open(page)
    before = browser.run(PAPER)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(PAPER) != before
    assert browser.run("return document.getElementById('theme').textContent") == "Light"
    browser.run("document.querySelector('.copy').click()")
    assert browser.run("return getSelection().toString()").startswith("paceline run")
    assert browser.console() == []


def test_a_page_that_asks_or_complains_would_be_found(browser, tmp_path):
    """The negative control of the checks above."""
    loud = tmp_path / "loud.html"
    loud.write_text("<img src='http://127.0.0.1:9/x.png'><script>console.error('no')</script>")
    browser.open(loud)
    browser.run("return 1")
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert any("no" in line for line in browser.console())


def test_a_style_or_a_script_that_got_into_the_page_does_nothing(browser, page):
    foreign = "<style>main { display: none }</style><script>document.title = 'taken'</script>"
    page.write_text(page.read_text().replace("<main>", foreign + "<main>"))
    browser.open(page)
    assert browser.run("return document.title") == "paceline report"
    assert browser.run("return getComputedStyle(document.querySelector('main')).display") != "none"
    assert len([line for line in browser.console() if "Content Security Policy" in line]) == 2

import base64
import hashlib
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from paceline.measure.record.store import Skipped
from paceline.race.results.fields import fields_of
from paceline.report import plots
from paceline.report.page import write_report
from paceline.report.page.sections import draw_field
from paceline.report.palette import DARK, LIGHT, painted
from paceline.report.plots import WIDE, to_svg
from paceline.report.tables import received
from tests.report.samples import RATES, cell, events, race, record

VOID = {"meta", "link", "line", "path", "circle", "rect", "br"}


class Checked(HTMLParser):
    """Fails on tags that do not close; keeps ids, and addresses that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.addresses, self.titles = [], [], [], 0

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[key] for key in ("src", "href", "xlink:href") if key in values]
        self.titles += tag == "title"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    records = [*race(worlds=(1, 2)), record("local_sgd", 2, 1, kind="replayed")]
    seen = {r.id: events() for r in records if r.workers == 2 and r.run.strategy in ("ddp", "allreduce")}
    skipped = [Skipped(folder / "bad.json", "it is no JSON")]
    path = write_report(records, folder / "r.html", events=seen, skipped=skipped, charts=folder / "charts")
    return path, records


def test_the_page_is_well_formed_with_unique_ids(page):
    parsed = Checked()
    parsed.feed(page[0].read_text())
    assert parsed.open == []
    assert len(parsed.ids) == len(set(parsed.ids))


def test_the_page_asks_for_nothing(page):
    text = page[0].read_text()
    parsed = Checked()
    parsed.feed(text)
    assert {address for address in parsed.addresses if not address.startswith("#")} == {"data:,"}
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#)", text)
    assert set(re.findall(r"https?://[^\"' <)]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_the_page_is_small(page):
    assert page[0].stat().st_size < 1_000_000


def test_every_chart_has_a_title_a_description_and_a_table(page):
    text = page[0].read_text()
    figures = re.findall(r"<figure>.*?</figure>", text, re.S)
    charts = [figure for figure in figures if 'class="chart wide"' in figure]
    assert len(charts) >= 9
    for chart in charts:
        assert "<table>" in chart
        assert chart.count("<desc") == chart.count("<svg") == 2


def test_the_page_shows_all_that_was_asked_for(page):
    text, records = page[0].read_text(), page[1]
    words = re.sub(r"</?span>", "", text)
    for title in (
        *("Same result as all-reduce", "Changes convergence", "Scaling", "Where a step goes", "Step times"),
        *(
            "Timeline of a step",
            "Bytes per step",
            "Memory",
            "Loss and accuracy",
            "Topologies",
            "Runs",
            "Notes",
            "Machine",
        ),
    ):
        assert f"<h2>{title}</h2>" in text
    assert text.index("<h1>") < text.index("<h2>")
    for entry in records:
        assert entry.text in words
        assert entry.id in text
    assert "local_sgd (replayed)" in text
    assert "bad.json was left out: it is no JSON" in text


def test_the_contents_lead_to_every_section_of_every_field(tmp_path):
    more = [record(strategy, 2, start, run={"model": "resnet18"}) for strategy in RATES for start in range(1, 6)]
    text = write_report(race(worlds=(2,)) + more, tmp_path / "r.html").read_text()
    parsed = Checked()
    parsed.feed(text)
    assert len(parsed.ids) == len(set(parsed.ids))
    links = [address[1:] for address in parsed.addresses if address.startswith("#")]
    assert links == re.findall(r'<(?:section|h2 class="field") id="([^"]+)">', text)
    assert {"memory", "memory-2", "runs"} <= set(links)


def test_both_groups_stand_apart(page):
    text = page[0].read_text()
    same, changes = (text.index(f"<h2>{title}</h2>") for title in ("Same result as all-reduce", "Changes convergence"))
    assert "neighbor_allreduce" not in text[same:changes]


def test_charts_are_written_as_png_and_svg(page):
    folder = page[0].parent / "charts"
    names = {path.stem for path in folder.glob("*.svg")}
    assert names == {path.stem for path in folder.glob("*.png")}
    assert {"scaling", "throughput-same-2", "throughput-changes-2", "breakdown-2", "bytes-2", "loss-2"} <= names
    assert any(name.startswith("timeline-") for name in names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))


def test_what_a_record_says_cannot_become_markup(tmp_path):
    evil = "<script>alert(1)</script>"
    made = record(text=evil, notes=[evil], run={"model": evil}, environment={"processor": evil})
    text = write_report([made], tmp_path / "r.html", title=evil).read_text()
    assert evil not in text
    assert "&lt;script&gt;alert(1)" in text


def test_every_field_has_its_verdict_in_words(tmp_path):
    other = [record(strategy, 2, start, run={"model": "resnet18"}) for strategy in RATES for start in range(1, 6)]
    text = write_report(race(worlds=(2,)) + other, tmp_path / "r.html").read_text()
    assert text.count(" wins on ") == 2
    assert text.count("of the limit, which exchanges nothing") == 2


def test_bytes_are_those_of_a_worker_and_not_of_servers():
    with_servers = record("parameter_server", bytes={"received_per_step": [100, 100, 200]})
    assert received(with_servers) == 100


def test_bytes_of_ddp_are_shown_where_its_buckets_are_known():
    known = record("ddp", bytes={"received_per_step": [100, 100], "buckets": [60, 40]})
    assert received(known) == 100
    assert received(record("ddp", bytes={"received_per_step": [0, 0]})) is None


def test_no_rate_is_no_crash(tmp_path):
    text = write_report([record(verdict="failed", rate={})], tmp_path / "r.html").read_text()
    assert "No run in this report has a rate." in text
    assert "failed" in text


def test_both_papers_have_every_color_and_light_ones_differ():
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert painted('fill="var(--ink)"', LIGHT) == f'fill="{LIGHT["ink"]}"'


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read_on_its_paper(colors):
    def light(value):
        parts = [int(value[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a, b):
        bright, dim = sorted((light(a), light(b)), reverse=True)
        return (bright + 0.05) / (dim + 0.05)

    # 4.5 is what WCAG asks of text, 3 of what must be told from the paper in a chart
    assert min(contrast(colors[name], colors["paper"]) for name in ("ink", "soft")) >= 4.5
    marks = ("same", "changes", "reference", "exposed", "update", "backward", "series1", "series2", "series3")
    assert min(contrast(colors[name], colors["paper"]) for name in marks) >= 3


def notes_of(path):
    text = path.read_text()
    section = text[text.index('<section id="notes">') :]
    return re.findall(r"<li>(.*?)</li>", section[: section.index("</section>")], re.S)


def test_failures_and_damaged_files_are_told_first_and_never_cut(tmp_path):
    unsteady = [record("wfbp", start=1, seed=seed, verdict="unsteady") for seed in range(1, 21)]
    unsteady[0].notes.append("a note")
    why = "rank 1 (pid 7) was killed: no memory is left\nread rank-1.log"
    broken = [record(seed=seed, verdict="failed", rate={}, failure=why) for seed in range(1, 14)]
    skipped = [Skipped(tmp_path / f"bad-{k}.json", "it is no JSON") for k in range(14)]
    lines = notes_of(write_report([*unsteady, *broken], tmp_path / "r.html", skipped=skipped))
    assert lines[:13] == [f"{entry.id} (allreduce, 2 workers) failed: {why}" for entry in broken]
    assert lines[13:27] == [f"{skip.path} was left out: it is no JSON" for skip in skipped]
    assert lines[27] == "a note"
    assert lines[28] == "20 of 20 starts of wfbp were unsteady"
    assert sum("is unsteady" in line for line in lines[29:]) == 12
    assert lines[-1] == "and 8 more unsteady runs, in the records"
    assert len(lines) == 29 + 12 + 1


def test_every_command_is_that_of_its_record_and_no_more_is_claimed(tmp_path):
    plain = record(text="paceline race -np 2 -- python train.py")
    text = re.sub(r"</?span>", "", write_report([plain], tmp_path / "r.html").read_text())
    assert "<code>paceline race -np 2 -- python train.py</code>" in text
    assert "stands for a secret" not in text
    hidden = record(text="paceline run --source 's3://***@host'")
    assert "*** stands for a secret" in write_report([hidden], tmp_path / "r.html").read_text()


def test_many_commands_are_folded_and_all_are_there(tmp_path):
    records = [record(text=f"paceline run -np 2 --seed {k}", seed=k) for k in range(30)]
    text = write_report(records, tmp_path / "r.html").read_text()
    assert text.count('class="command"') == 30
    assert text.index("22 more commands") > text.index("<span>7</span>")
    assert "more commands" not in write_report(records[:8], tmp_path / "r.html").read_text()


def test_contenders_of_all_labels_share_one_timeline(tmp_path):
    labels = ["a b", "a-b", "long " * 99]
    records = [cell(label, start=1 + k) for k, label in enumerate(labels)]
    seen = {entry.id: events(length=0.3 * (1 + k)) for k, entry in enumerate(records)}
    write_report(records, tmp_path / "r.html", events=seen, charts=tmp_path / "charts")
    [path] = tmp_path.glob("charts/timeline-*.svg")
    svg = path.read_text()
    assert svg.count("rank 0 sends") == svg.count("rank 1 sends") == len(labels)
    assert svg.count("ms since the step began") == 1
    assert all(f">{label[:10]}" in svg for label in labels)


def test_charts_of_several_fields_do_not_overwrite_each_other(tmp_path):
    records = [*race(worlds=(2,)), *(record(name, run={"model": "resnet18"}) for name in RATES)]
    write_report(records, tmp_path / "r.html", charts=tmp_path / "charts")
    names = {path.name for path in tmp_path.glob("charts/*.svg")}
    assert {"1-breakdown-2.svg", "2-breakdown-2.svg"} <= names


def test_too_few_steps_to_tell_is_not_called_unsteady(tmp_path):
    series = {"judged": False, "why": "6 steps are too few to tell"}
    records = [record(name, start=k, verdict="unsteady", series=series) for name in ("ddp", "wfbp") for k in (1, 2)]
    path = write_report(records, tmp_path / "r.html")
    assert notes_of(path) == ["whether ddp, wfbp are steady was not judged: 6 steps are too few to tell"]
    assert "unsteady" not in path.read_text()


def test_the_policy_names_the_style_and_the_script_by_their_hashes(tmp_path):
    text = write_report(race(worlds=(2,)), tmp_path / "r.html").read_text()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "unsafe" not in policy
    for name in ("style", "script"):
        [inside] = re.findall(rf"<{name}>(.*?)</{name}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert not re.search(r'<[^>]* (style|on\w+)="', text)


def test_every_chart_is_well_formed_and_has_only_colors_of_the_palette():
    records = race(worlds=(1, 2))
    seen = {entry.id: events() for entry in records}
    figures = [shown for field in fields_of(records) for shown in draw_field(field, seen).figures()]
    assert len({shown.name.partition("-")[0] for shown in figures}) >= 5
    for shown in figures:
        drawn = shown.chart.draw(WIDE)
        ElementTree.fromstring(drawn)
        assert set(re.findall(r"var\(--(\w+)\)", drawn)) <= LIGHT.keys()
        assert not re.search(r"#[0-9a-f]{3}", drawn)
        assert "var(" not in to_svg(shown)


def test_figures_that_a_script_logged_are_drawn_under_a_harmless_file_name():
    logged = {"../loss": {"steps": [1, 5, 9], "values": [2.0, 1.5, 1.0], "ranks": 2}}
    [field] = fields_of([record(start=start).model_copy(update={"metrics": logged}) for start in (1, 2)])
    drawn = plots.logged(field.at(2), "../loss", 2)
    assert drawn.name == "logged--loss-2"
    assert drawn.says == "allreduce from 2 to 1."
    assert plots.logged(field.at(2), "accuracy", 2) is None

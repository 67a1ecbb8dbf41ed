"""Charts that are drawn here: ticks, legends, and marks where they belong."""

import random
import re
from xml.etree import ElementTree

import pytest

from paceline.report.chart import Bar, Dot, Hill, Interval, Line, Lines, Row, Rows
from paceline.report.chart import legend as legends
from paceline.report.chart.rows import spread
from paceline.report.chart.svg import shortened, text_width
from paceline.report.chart.ticks import powers, prefixed, ticks, written

SVG = "{http://www.w3.org/2000/svg}"


def elements(chart, width, name):
    return [
        dict(e.attrib, text="".join(e.itertext())) for e in ElementTree.fromstring(chart.draw(width)).iter(SVG + name)
    ]


@pytest.mark.parametrize(
    ("low", "high", "count", "texts"),
    [
        (0, 393, 6, ["0", "100", "200", "300"]),
        (0, 1, 5, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 0.013, 5, ["0.000", "0.005", "0.010"]),
        (1, 3, 8, ["1.00", "1.25", "1.50", "1.75", "2.00", "2.25", "2.50", "2.75", "3.00"]),
        (0, 25_000, 5, ["0", "5,000", "10,000", "15,000", "20,000", "25,000"]),
        (5, 5, 4, ["5"]),
    ],
)
def test_ticks_are_round_and_written_alike(low, high, count, texts):
    assert written(ticks(low, high, count)) == texts


def test_ticks_stay_within_the_axis_and_are_never_many():
    dice = random.Random(7)
    for _ in range(500):
        low = dice.choice([0.0, dice.uniform(-1e6, 1e6)])
        high = low + 10 ** dice.uniform(-6, 9)
        count = dice.randint(1, 9)
        values = ticks(low, high, count)
        room = 1e-6 * (high - low) + 1e-9 * abs(low)
        assert 1 <= len(values) <= count + 2
        assert (low - room <= values[0] and values[-1] <= high + room) or values == [low]
        assert len(set(written(values))) == len(values)


def test_whole_ticks_count_epochs_and_powers_cover_a_wide_range():
    assert ticks(1, 3, 8, whole=True) == [1, 2, 3]
    assert powers(0.02, 30, 9) == [0.01, 0.1, 1, 10, 100]
    assert len(powers(1, 1e12, 4)) <= 5
    assert [prefixed(value) for value in (0.01, 1, 1e3, 64e6)] == ["0.01", "1", "1k", "64M"]


def test_a_legend_of_long_labels_has_as_many_columns_as_fit_and_takes_nothing_from_the_chart():
    names = [f"parameter_server, fake on device {k}" for k in range(8)]
    assert {row for _, row in legends.places(["ddp", "limit"], 760)} == {0}
    columns = [len({x for x, _ in legends.places(names, width)}) for width in (760, 350)]
    assert columns == [3, 1]
    lines = tuple(Line(name, "same", ((0.0, 1.0), (1.0, 2.0))) for name in names)
    heights = [float(ElementTree.fromstring(Lines("x", "y", lines).draw(width)).get("height")) for width in (760, 350)]
    short = float(ElementTree.fromstring(Lines("x", "y", lines[:1]).draw(760)).get("height"))
    assert heights[1] > heights[0] > short


def test_bars_begin_where_the_axis_does_and_lengths_are_in_proportion():
    chart = Rows(
        "ms", (Row("a", (Bar(0, 50, "same"),)), Row("b", (Bar(0, 100, "same"),)), Row("c", (Bar(50, 100, "same"),)))
    )
    a, b, c = elements(chart, 760, "rect")
    assert float(b["width"]) == pytest.approx(2 * float(a["width"]), abs=0.2)
    assert float(c["x"]) == pytest.approx(float(a["x"]) + float(a["width"]), abs=0.2)


def test_marks_say_their_values_to_a_pointer_and_text_is_escaped():
    says = "<b>'a' & b: 7"
    row = Row(
        "<i>",
        (Bar(0, 7, "same", says), Interval(6, 8), Dot(7.5, "ink", says), Hill(0, 1, (0.5, 1.0), "same", says)),
        "<7>",
    )
    chart = Rows("x", (row,))
    assert [e["text"] for e in elements(chart, 760, "title")] == [says] * 3
    assert "<i>" in [e["text"] for e in elements(chart, 760, "text")]
    assert "<b>" not in chart.draw(760)


@pytest.mark.parametrize("width", [350, 760])
def test_no_text_leaves_the_chart(width):
    rows = tuple(Row(name, (Bar(0, 393.4, "same"), Interval(380, 410)), "393") for name in ("ddp", "a contender " * 9))
    chart = Rows("img/s, 95 % interval; a dot is one start", rows, tuple((f"part {k}", "same") for k in range(9)))
    lines = Lines("workers", "img/s", (Line("a " * 99, "same", ((1.0, 1e7), (2.0, 2e7)), dots=True),), from_zero=True)
    for drawn in (chart, lines):
        for text in elements(drawn, width, "text"):
            size = text_width(text["text"], float(text.get("font-size", 12)))
            left = float(text["x"]) - {"end": size, "middle": size / 2}.get(text.get("text-anchor"), 0)
            assert left >= -1, text
            assert left + size <= width + 1, text


def test_long_names_stand_above_their_rows_where_there_is_no_room_beside_them():
    chart = Rows("ms", (Row("neighbor_allreduce (replayed)", (Bar(0, 1, "same"),)),))
    wide, narrow = (
        next(e for e in elements(chart, width, "text") if e["text"].startswith("neigh")) for width in (760, 350)
    )
    assert wide["text-anchor"] == "end"
    assert (narrow["x"], narrow.get("text-anchor")) == ("0", None)
    assert shortened("a" * 99, 50).endswith("…")


@pytest.mark.parametrize("points", [((1.0, 0.0),), ((1.0, 5.0), (2.0, 5.0)), ((0.0, -3.0), (1.0, 1e-12))])
def test_flat_and_single_lines_can_be_drawn(points):
    drawn = Lines("x", "y", (Line("a", "same", points, dots=True),)).draw(760)
    assert not re.search(r"nan|inf\b", drawn)
    assert len(re.findall("<circle", drawn)) == len(points)


def test_logarithmic_axes_have_equal_steps_between_powers():
    line = Line("shm", "same", ((1e3, 0.01), (1e5, 0.1), (1e7, 1.0)), dots=True)
    dots = elements(Lines("bytes", "GB/s", (line,), logarithmic=True), 300, "circle")
    xs, ys = ([float(e[key]) for e in dots] for key in ("cx", "cy"))
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)


def test_a_hill_counts_what_is_inside_and_its_highest_stretch_is_one():
    assert spread([0.1, 0.1, 0.6, 7.0], 0, 1, 4) == (1.0, 0.0, 0.5, 0.0)
    assert spread([], 0, 1, 2) == (0.0, 0.0)
    assert spread([1.0, 1.0], 1, 1, 2) == (0.0, 0.0)

"""Tables and the charts in front of them: accuracy, and what cannot be told of DDP."""

from paceline.race.results.fields import fields_of
from paceline.report import plots, tables
from paceline.report.page.sections import draw_field
from tests.report.samples import cell, graded, race, record

EPOCHS = {"ddp": (0.4, 0.7, 0.9), "allreduce": (0.5, 0.8, 0.75), "wfbp": (0.6,)}


def field_of(records):
    [field] = fields_of(records)
    return field


def column(table, name):
    place = table.head.index(name)
    return {row[0]: row[place] for row in table.rows}


def graded_race():
    return [record(name, start=start, accuracy=graded(*values)) for name, values in EPOCHS.items() for start in (1, 2)]


def drawn_rows(chart):
    """What a chart of one layer shows."""
    return chart.spec["data"]["values"]


def test_accuracy_stands_beside_the_rate_where_any_contender_has_it():
    field = field_of([*graded_race(), record("limit")])
    found = column(tables.throughput(field, field.standings), "accuracy")
    assert found == {"ddp": "0.9000", "allreduce": "0.7500", "wfbp": "0.6000", "limit": "-"}


def test_without_accuracy_there_is_no_column_of_it():
    field = field_of(race(worlds=(2,)))
    assert "accuracy" not in tables.throughput(field, field.standings).head


def test_a_single_accuracy_is_in_the_table_and_needs_no_chart():
    drawn = draw_field(field_of([record(accuracy=graded(0.9))]), {})
    assert [chart.name for _, chart in drawn.curves] == ["loss-2"]
    assert column(drawn.same[0][1].table, "accuracy") == {"allreduce": "0.9000"}


def test_the_accuracy_chart_has_a_line_of_all_epochs_for_whoever_has_several():
    drawn = draw_field(field_of(graded_race()), {})
    chart = next(chart for _, chart in drawn.curves if chart.name == "accuracy-2")
    shown = {(row["name"], row["step"]): row["value"] for row in drawn_rows(chart)}
    assert shown == {(name, k + 1): EPOCHS[name][k] for name in ("ddp", "allreduce") for k in range(3)}
    assert chart.table.head == ("contender", "points", "first accuracy", "highest", "last")
    assert column(chart.table, "highest") == {"ddp": "0.9", "allreduce": "0.8"}
    assert "allreduce from 0.5 to 0.75" in chart.says
    assert "epoch" in plots.to_svg(chart.spec)


def test_what_ddp_waits_is_not_known_and_not_shown_as_nothing():
    field = field_of(race(worlds=(2,)))
    chart = plots.breakdown(field.at(2), 2)
    exposed, waiting = column(chart.table, "exposed ms"), column(chart.table, "waiting")
    assert (exposed["ddp"], waiting["ddp"]) == ("-", "-")
    assert waiting["allreduce"] == "5.0 %"
    parts = {(row["name"], row["part"]) for row in drawn_rows(chart)}
    assert ("ddp", "exposed") not in parts
    assert {("ddp", "backward"), ("allreduce", "exposed")} <= parts


def test_the_baseline_of_a_race_is_where_lines_begin_and_no_line_of_its_own():
    alone = [record("limit", 1, start) for start in range(1, 6)]
    chart = plots.scaling(field_of([*alone, *race(worlds=(2,), strategies=("ddp", "allreduce"))]))
    rows = [row for layer in chart.spec["layer"] for row in layer["data"]["values"]]
    names = {row["name"] for row in rows if "name" in row}
    assert names == {"ddp", "allreduce"}
    assert "limit" in column(chart.table, "workers")


def test_a_legend_of_long_labels_has_as_many_columns_as_fit():
    labels = [f"parameter_server, fake on device {k}" for k in range(8)]
    long = plots.scaling(field_of([record("limit", 1), *(cell(label) for label in labels)]))
    assert "columns" not in plots.scaling(field_of(race(worlds=(1, 2)))).at(plots.WIDE)["config"]["legend"]
    wide, narrow = (long.at(width) for width in (plots.WIDE, plots.NARROW))
    assert (wide["config"]["legend"]["columns"], narrow["config"]["legend"]["columns"]) == (2, 1)
    assert narrow["height"] > wide["height"] > long.spec["height"], "lines of a legend take nothing from the chart"

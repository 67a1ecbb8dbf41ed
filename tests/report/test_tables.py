"""Tables and the charts in front of them: accuracy, and what cannot be told of DDP."""

from paceline.race.results.fields import fields_of
from paceline.report import plots, spread, tables
from paceline.report.chart import Dot, Interval
from paceline.report.page.sections import draw_field
from tests.report.samples import graded, race, record

EPOCHS = {"ddp": (0.4, 0.7, 0.9), "allreduce": (0.5, 0.8, 0.75), "wfbp": (0.6,)}


def field_of(records):
    [field] = fields_of(records)
    return field


def column(table, name):
    place = table.head.index(name)
    return {row[0]: row[place] for row in table.rows}


def graded_race():
    return [record(name, start=start, accuracy=graded(*values)) for name, values in EPOCHS.items() for start in (1, 2)]


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
    shown = {(line.name, x): y for line in chart.chart.lines for x, y in line.points}
    assert shown == {(name, k + 1): EPOCHS[name][k] for name in ("ddp", "allreduce") for k in range(3)}
    assert chart.table.head == ("contender", "points", "first accuracy", "highest", "last")
    assert column(chart.table, "highest") == {"ddp": "0.9", "allreduce": "0.8"}
    assert "allreduce from 0.5 to 0.75" in chart.says
    assert ">epoch</text>" in plots.to_svg(chart)


def test_accuracy_against_time_has_every_start_and_the_seconds_to_a_target():
    def timed(seconds, *values):
        return [{**grade, "seconds": seconds * k} for k, grade in enumerate(graded(*values), 1)]

    slow = [record("ddp", start=start, accuracy=timed(10, 0.5, 0.7, 0.9)) for start in (1, 2)]
    fast = [record("allreduce", start=start, accuracy=timed(5 + start, 0.6, 0.8, 0.8 - start / 10)) for start in (1, 2)]
    drawn = draw_field(field_of([*slow, *fast]), {})
    chart = next(chart for _, chart in drawn.curves if chart.name == "accuracy-time-2")
    assert [line.name for line in chart.chart.lines].count("allreduce") == 2
    assert {(20.0, 0.7), (30.0, 0.9)} <= {point for line in chart.chart.lines for point in line.points}
    assert column(chart.table, "reached 0.8") == {"ddp": "2 of 2", "allreduce": "2 of 2"}
    assert column(chart.table, "seconds until then")["ddp"] == "30.0 [30.0, 30.0]"
    assert column(chart.table, "seconds until then")["allreduce"].startswith("13.0 [")
    assert column(chart.table, "final accuracy")["allreduce"].startswith("0.6500 [")
    assert ">seconds of training</text>" in plots.to_svg(chart)


def test_what_ddp_waits_is_not_known_and_not_shown_as_nothing():
    field = field_of(race(worlds=(2,)))
    chart = plots.breakdown(field.at(2), 2)
    exposed, waiting = column(chart.table, "exposed ms"), column(chart.table, "waiting")
    assert (exposed["ddp"], waiting["ddp"]) == ("-", "-")
    assert waiting["allreduce"] == "5.0 %"
    parts = {(row.name, bar.color) for row in chart.chart.rows for bar in row.marks}
    assert ("ddp", "exposed") not in parts
    assert {("ddp", "backward"), ("allreduce", "exposed")} <= parts


def test_the_baseline_of_a_race_is_where_lines_begin_and_no_line_of_its_own():
    alone = [record("limit", 1, start) for start in range(1, 6)]
    chart = plots.scaling(field_of([*alone, *race(worlds=(2,), strategies=("ddp", "allreduce"))]))
    assert {line.name for line in chart.chart.lines} == {"ddp", "allreduce"}
    assert all([x for x, _ in line.points] == [1, 2] for line in chart.chart.lines)
    assert "limit" in column(chart.table, "workers")


def test_a_loss_that_is_no_number_is_left_out_of_its_line():
    losses = [2.0, float("nan"), 1.0, float("inf"), 0.5]
    [(_, chart)] = draw_field(field_of([record(loss=losses)]), {}).curves
    assert chart.chart.lines[0].points == ((0.0, 2.0), (2.0, 1.0), (4.0, 0.5))
    broken = draw_field(field_of([record(loss=[float("nan")] * 4)]), {})
    assert broken.curves == []


def test_every_start_is_a_dot_beside_the_mean_and_its_interval():
    field = field_of(race(worlds=(2,), strategies=("ddp", "allreduce"), starts=4))
    chart = plots.throughput(field, field.at(2), 2, 1.0).chart
    for row, standing in zip(chart.rows, field.at(2), strict=True):
        dots = [mark for mark in row.marks if isinstance(mark, Dot)]
        assert [dot.at for dot in dots] == standing.rates
        assert all(entry.id in dot.says for entry, dot in zip(standing.records, dots, strict=True))
        [interval] = [mark for mark in row.marks if isinstance(mark, Interval)]
        assert (interval.low, interval.high) == (standing.rate.low, standing.rate.high)
    assert chart.end >= max(row.end for row in chart.rows), "no start lies outside"
    single = plots.throughput(field, field_of([record()]).at(2), 2, 1.0).chart
    assert not any(isinstance(mark, Dot) for mark in single.rows[0].marks)


def test_the_distribution_of_step_times_has_all_starts_and_room_for_the_usual_ones():
    slow = record("ddp", start=2, series={"seconds": [0.1] * 297 + [0.2] * 2 + [9.0]})
    field = field_of(
        [record("ddp", series={"seconds": [0.1] * 300}), slow, record("wfbp", series={"seconds": [0.1] * 4})]
    )
    figure = spread.steps(field.at(2), 2)
    [row] = figure.chart.rows
    assert row.name == "ddp", "four steps have no distribution"
    assert figure.table.rows == (("ddp", "600", "100.00", "100.00", "100.00", "100.00", "9000.00"),)
    hill, tick = row.marks
    assert tick.at == 100.0
    assert figure.chart.end < 150
    assert "3 longer than" in hill.says
    assert spread.steps(field_of([record(series={})]).at(2), 2) is None


def test_memory_of_shared_processes_is_not_claimed_for_one_contender():
    def of(name, mates, peak):
        turn = {"name": "r", "round": 1, "sitting": "s", "shared": bool(mates), "mates": mates}
        return record(name, race=turn, resources={"pss_peak": [peak, peak], "rss_peak": [2 * peak] * 2})

    records = [of("ddp", ["allreduce"], 700e6), of("allreduce", ["ddp"], 700e6), of("wfbp", [], 300e6)]
    figure = spread.memory(field_of(records).at(2), 2)
    assert column(figure.table, "MB per worker (PSS)") == {"wfbp": "300", "2 contenders together": "700"}
    assert [row.end for row in figure.chart.rows] == [300.0, 700.0]
    assert spread.memory(field_of([record(kind="forecast", resources={})]).at(2), 2) is None
    # A start of its own gives a contender a bar of its own.
    weighed = {**records[1].resources, "alone": {"pss_peak": [250e6, 250e6], "rss_peak": [300e6, 300e6]}}
    known = [records[0], records[1].model_copy(update={"resources": weighed}), records[2]]
    figure = spread.memory(field_of(known).at(2), 2)
    assert column(figure.table, "MB per worker (PSS)") == {
        "allreduce": "250",
        "wfbp": "300",
        "2 contenders together": "700",
    }
    both = [one.model_copy(update={"resources": weighed}) for one in records[:2]]
    figure = spread.memory(field_of(both).at(2), 2)
    assert column(figure.table, "MB per worker (PSS)") == {"ddp": "250", "allreduce": "250"}

import json
from itertools import pairwise

import pytest

from paceline.measure.clock import align
from paceline.report.trace import chrome_trace, one_step, spans_of, to_json
from tests.report.samples import events, record


def test_spans_follow_each_other_on_the_compute_lane():
    spans = [span for span in spans_of(0, events()[0]) if span.lane == "compute" and span.step == 0]
    names = [span.name for span in spans]
    assert names == ["data", "forward", "backward", "update", "exposed", "update", "other"]
    assert all(a.stop == b.start for a, b in pairwise(spans))


def test_a_unit_is_under_way_from_leaving_until_it_is_seen_there():
    log = [[1.0, "leave", 0, 3, 0], [1.5, "arrived", 0, 3, 0], [9.0, "back", 0, 3, 0], [9.0, "back", 0, 4, 0]]
    [span] = spans_of(0, log)
    assert (span.name, span.start, span.stop) == ("chunk 3", 1.0, 1.5)


def test_two_lanes_of_a_rule_may_number_chunks_alike():
    log = [[1.0, "leave", 0, 0, 0], [2.0, "leave", 0, 0, 0], [3.0, "back", 0, 0, 0], [4.0, "back", 0, 0, 0]]
    assert [(s.start, s.stop) for s in spans_of(0, log)] == [(1.0, 3.0), (2.0, 4.0)]


def test_backwards_of_one_update_are_no_update():
    log = [[k, kind, 0, -1, 0] for k, kind in enumerate(["data", "forward", "backward", "computed"] * 2 + ["left"])]
    assert [span.name for span in spans_of(0, log)].count("update") == 1


def test_one_step_begins_at_zero_and_has_all_ranks():
    spans = one_step(events(ranks=3))
    assert min(span.start for span in spans) == 0
    assert {span.rank for span in spans} == {0, 1, 2}
    assert {span.lane for span in spans} == {"compute", "communication"}
    assert max(span.stop for span in spans) == pytest.approx(0.297)


def test_one_step_of_nothing_is_nothing():
    assert one_step([]) == []
    assert one_step([[[1.0, "ready", 0, 0, 0]]]) == []


def test_a_trace_is_valid_json_with_one_process_per_rank():
    kept = record(clock={"how": "barriers", "offsets": [0.0, 1.0], "within": [0.0, 1e-5]})
    trace = json.loads(to_json(chrome_trace(kept, events())))
    shown = trace["traceEvents"]
    assert {event["pid"] for event in shown} == {0, 1}
    names = {event["args"]["name"] for event in shown if event["name"] == "process_name"}
    assert names == {"rank 0 (measured)", "rank 1 (measured)"}
    assert {event["args"]["name"] for event in shown if event["name"] == "thread_name"} >= {"compute"}
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in shown if event["ph"] == "X")
    assert trace["otherData"]["clock"]["how"] == "barriers"
    assert trace["otherData"]["command"] == kept.text


def test_spans_of_one_thread_of_a_trace_do_not_overlap():
    shown = chrome_trace(record(), events(chunks=12))["traceEvents"]
    lanes = {}
    for event in shown:
        if event["ph"] == "X":
            lanes.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(lanes) > 4
    for spans in lanes.values():
        spans.sort()
        assert all(a[1] <= b[0] + 0.002 for a, b in pairwise(spans))


def test_a_record_without_offsets_says_that_its_ranks_are_not_aligned():
    assert "not aligned" in chrome_trace(record(), events())["otherData"]["clock"]["how"]


def test_clocks_are_aligned_by_barriers():
    """Rank 1's clock is 5 s ahead; whoever enters last, nobody leaves before."""
    true = [(0.0, 0.1, 0.11), (1.0, 0.9, 1.02), (2.0, 2.05, 2.06)]  # rank 0 enters, rank 1 enters, both leave
    first = [(a, leave) for a, _, leave in true]
    second = [(b + 5, leave + 5) for _, b, leave in true]
    clock = align([first, second])
    assert clock["offsets"][0] == 0
    assert abs(clock["offsets"][1] - 5) <= clock["within"][1] + 1e-12
    assert clock["within"][1] < 0.02


def test_the_step_that_is_shown_is_most_like_the_usual_one():
    lengths = (0.9, 0.2, 0.5, 0.3)  # the first may still be warming up
    ranks, zero = [[], []], 0.0
    for step, length in enumerate(lengths):
        for rank in ranks:
            rank += [
                [zero + length * at, kind, step, -1, 0] for kind, at in (("data", 0), ("backward", 0.5), ("end", 1))
            ]
        zero += length
    shown = {usual: {span.step for span in one_step(ranks, usual)} for usual in (None, 0.9, 0.31, 0.1)}
    assert shown == {None: {1}, 0.9: {2}, 0.31: {3}, 0.1: {1}}
    assert max(span.stop for span in one_step(ranks, 0.31)) == pytest.approx(0.3)

import json

import pytest

from paceline import compressors, schedules
from paceline.cli import main
from paceline.engine.coded import coded_link, seconds_of
from paceline.exchanges.allreduce import AllReduce
from paceline.exchanges.costs import traffic
from paceline.jobs.explain import explain, spoken
from paceline.jobs.predict import predict
from paceline.run import Run
from paceline.types import Chunk, Cluster, Layout, Link, Profile, Slot

LINK = Link(0.01, 1e6)


def profile(count=8, numel=25_000):
    """Layers of 0.1 s forward and 0.2 s backward each; a tensor of 100 kB takes 0.11 s."""
    layout = Layout(tuple(Slot(str(k), numel) for k in range(count)), 4, count)
    ready = tuple(0.2 * (k + 1) for k in range(count))
    return Profile(layout, ready, tuple(0.1 * (count - 1 - k) for k in range(count)))


def exposed(text, given=None, link=LINK, compress="none", workers=2):
    given = given or profile()
    schedule, member = schedules.MENU.make(text), compressors.MENU.make(compress)
    coded = coded_link(link, member, given.layout, workers)
    chunks = schedule.plan(given, coded.seconds).chunks()
    costs = [seconds_of(member.wires(given.layout, chunk, workers), workers, link) for chunk in chunks]
    count = len(given.ready)
    return predict(schedule, given, coded, costs, (0.1 * count, 0.2 * count))


def test_bsp_waits_for_one_message_after_backward():
    found = exposed("bsp")
    assert found.compute == pytest.approx(2.4)
    assert found.exposed == pytest.approx(LINK.seconds(8 * 100_000 + 32))
    assert found.communication == pytest.approx(found.exposed)


def test_wfbp_waits_for_the_last_tensor_where_the_link_keeps_up():
    assert exposed("wfbp").exposed == pytest.approx(LINK.seconds(100_032))


def test_mgwfbp_is_never_slower_than_fixed_sizes():
    for link in (LINK, Link(0.2, 1e6), Link(0.0, 3e5), Link(0.05, 1e9)):
        best = exposed("mgwfbp", link=link).exposed
        for text in ("bsp", "wfbp", "fusion(mb=0.1)", "fusion(mb=0.2)", "fusion(mb=0.4)"):
            assert best <= exposed(text, link=link).exposed + 1e-9


@pytest.mark.parametrize("compress", ["topk", "sign", "cast", "feedback(powersgd)"])
def test_mgwfbp_merges_what_a_compressor_has_made_small(compress):
    """Planned with dense bytes it would send too many small messages, or wait for too large ones."""
    for link in (LINK, Link(0.2, 1e6), Link(0.0, 3e4), Link(0.05, 1e9)):
        best = exposed("mgwfbp", link=link, compress=compress, workers=4).exposed
        for text in ("bsp", "wfbp", "fusion(mb=0.1)", "fusion(mb=0.2)", "fusion(mb=0.4)"):
            # rounds of the flags are not planned for
            assert best <= 1.02 * exposed(text, link=link, compress=compress, workers=4).exposed + 1e-9


def test_crossing_hides_communication_behind_the_next_forward():
    slow = Link(0.001, 3.4e5)  # all-reduce takes as long as forward and backward together
    plain = exposed("mgwfbp", link=slow).exposed
    assert exposed("priority(partition=0.05, credit=0.1)", link=slow).exposed < 0.6 * plain
    assert exposed("dear(mb=0.1)", link=slow).exposed < plain


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("compress", ["none", "cast", "topk", "sign", "gtopk", "feedback(powersgd)", "feedback(gtopk)"])
def test_a_compressor_is_charged_for_what_a_rank_receives_in_every_round(compress, workers):
    member, layout = compressors.MENU.make(compress), Layout((Slot("w", 10**6, (1000, 1000)),), 4)
    whole = Chunk(0, 0, layout.numel)
    rounds = traffic(AllReduce(), member, layout, whole, Cluster.of_one_host(workers))
    received = [sum(flow.nbytes for flow in flows if flow.dst == 0) for flows in rounds]
    dense = 2 * (workers - 1) / workers  # of an all-reduce of one byte
    wires = member.wires(layout, whole, workers)
    latencies = LINK.latency * len(wires)
    found = seconds_of(wires, workers, LINK) - latencies
    if "gtopk" in compress:  # in some rounds rank 0 hears nothing, but another does
        received = [wire.nbytes for wire in wires]
    # an all-reduce deals parts of 64 bytes to ranks: up to 64 more or less in each of its two halves
    assert found == pytest.approx(sum(received) / dense / LINK.bandwidth, abs=128 * len(rounds) / LINK.bandwidth)


def test_an_all_gather_among_many_is_charged_more_than_among_few():
    few, many = (exposed("bsp", compress="topk(ratio=0.1)", workers=workers).exposed for workers in (2, 16))
    assert many > 5 * few
    pairs = [exposed("bsp", compress="gtopk(ratio=0.1)", workers=workers).communication for workers in (2, 4)]
    assert pairs[1] > 1.3 * pairs[0], "two rounds of k instead of one, where an all-reduce has 3/2 d instead of d"


def test_a_credit_counts_dense_bytes_as_the_engine_does(monkeypatch):
    from paceline.jobs import predict as module

    seen = {}

    class Looked(module.Leader):
        def __init__(self, needs, *, nbytes, **settings):
            seen["nbytes"] = list(nbytes)
            super().__init__(needs, nbytes=nbytes, **settings)

    monkeypatch.setattr(module, "Leader", Looked)
    exposed("priority(partition=0.1, credit=0.2)", compress="topk(ratio=0.01)")
    assert sum(seen["nbytes"]) == profile().layout.nbytes


def test_without_a_link_no_plan_is_invented(tmp_path):
    run = Run(workers=2, model="mlp", schedule="mgwfbp")
    planned, blind = (explain(run.with_(profile=written(tmp_path, link=link))) for link in (True, False))
    assert (planned.planned, blind.planned) == (True, False)
    assert len(blind.chunks) == 1, "as long as the link is not known"
    assert any("made in the run" in line and "the profile has no link" in line for line in spoken(blind))
    assert not any("made in the run" in line for line in spoken(explain(run.with_(profile=written(tmp_path)))))


def written(tmp_path, link=True):
    from paceline.models.layouts import layout_of

    slots = list(reversed(layout_of("mlp")))
    values = {
        "layout": [{"name": slot.name, "numel": slot.numel} for slot in slots],
        "forward": [0.01 * (len(slots) - 1 - k) for k in range(len(slots))],
        "forward_seconds": 0.01 * len(slots),
        "ready": [0.02 * (k + 1) for k in range(len(slots))],
        "backward": 0.02 * len(slots),
        "link": {"latency": 1e-3, "bandwidth": 1e8} if link else None,
    }
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(values))
    return str(path)


@pytest.mark.parametrize("schedule", schedules.MENU.names())
def test_explain_shows_chunks_and_cost_of_every_schedule(schedule, tmp_path):
    run = Run(workers=2, model="mlp", schedule=schedule)
    assert explain(run).prediction is None
    lines = spoken(explain(run.with_(profile=written(tmp_path))))
    assert any(line.startswith("chunks") for line in lines)
    assert any("ms computing" in line for line in lines)
    assert max(len(line) for line in lines[1:]) <= 80
    assert explain(run.with_(profile=written(tmp_path, link=False))).prediction is None


def test_explain_refuses_the_profile_of_another_model(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["explain", "--model", "resnet18", "--profile", written(tmp_path)])
    assert end.value.code == 2
    assert "is of another model" in capsys.readouterr().err

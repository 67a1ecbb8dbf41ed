import json
from pathlib import Path

import pytest
import torch

from paceline.cli import main
from paceline.comm.thread import run_ranks
from paceline.engine import way
from paceline.engine.coded import seconds_of
from paceline.engine.step_plan import plan_step
from paceline.forecast.on_link import predict, with_prediction
from paceline.run.compose.compose import compose
from paceline.run.explain import explain as plain_explain
from paceline.run.explain import spoken
from paceline.run.run import Run
from paceline.strategy import compressors, schedules
from paceline.strategy.exchanges._costs import traffic
from paceline.strategy.exchanges.allreduce import AllReduce
from paceline.train.pace import Pace
from paceline.types import Chunk, Cluster, Flow, Layout, Link, Profile, Slot
from paceline.workload.layouts import layout_of
from paceline.workload.profile import read

LINK = Link(0.01, 1e6)
MANY = 1024


def explain(run):
    return with_prediction(plain_explain(run))


def profile(count=8, numel=25_000):
    """Layers of 0.1 s forward and 0.2 s backward each; a tensor of 100 kB takes 0.11 s."""
    layout = Layout(tuple(Slot(str(k), numel) for k in range(count)), 4, count)
    ready = tuple(0.2 * (k + 1) for k in range(count))
    return Profile(layout, ready, tuple(0.1 * (count - 1 - k) for k in range(count)))


def exposed(text, given=None, link=LINK, compress="none", workers=2):
    given = given or [profile()]
    schedule, member = schedules.MENU.make(text), compressors.MENU.make(compress)
    plan = plan_step(schedule, given, link, member, workers)
    wires = [member.wires(plan.layouts[chunk.arena], chunk, workers) for chunk in plan.chunks]
    count = sum(len(one.ready) for one in given)
    costs = [seconds_of(rounds, workers, link) for rounds in wires]
    return predict(schedule, plan, given, costs, (0.1 * count, 0.2 * count))


def halved():
    """The same model as two arenas: every other tensor is of another dtype, of as many bytes."""
    whole = profile()
    parts = [range(0, 8, 2), range(1, 8, 2)]
    sizes = ((25_000, 4), (12_500, 8))
    return [
        Profile(
            Layout(tuple(Slot(str(k), numel) for k in part), itemsize, len(part)),
            tuple(whole.ready[k] for k in part),
            tuple(whole.forward[k] for k in part),
        )
        for part, (numel, itemsize) in zip(parts, sizes, strict=True)
    ]


@pytest.mark.parametrize("text", ["wfbp", "priority(partition=0.1, credit=0.2)"])
def test_two_arenas_take_turns_on_the_link(text):
    """Their flags are one more message, or a few bytes of one; all else travels in the same order."""
    slow = Link(0.0, 3.4e5)
    one, two = exposed(text, link=slow), exposed(text, halved(), link=slow)
    assert two.exposed == pytest.approx(one.exposed, abs=0.01)
    assert two.communication == pytest.approx(one.communication, abs=0.01)


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
    received = [flows.received().get(0, 0) for flows in rounds]
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
    seen = {}

    class Looked(way.Leader):
        def __init__(self, needs, *, nbytes, **settings):
            seen["nbytes"] = list(nbytes)
            super().__init__(needs, nbytes=nbytes, **settings)

    monkeypatch.setattr(way, "Leader", Looked)
    exposed("priority(partition=0.1, credit=0.2)", compress="topk(ratio=0.01)")
    assert sum(seen["nbytes"]) == profile().layout.nbytes


def test_without_a_link_no_plan_is_invented(tmp_path):
    run = Run(workers=2, model="mlp", schedule="mgwfbp")
    planned, blind = (explain(run.with_(profile=written(tmp_path, link=link))) for link in (True, False))
    assert (planned.planned, blind.planned) == (True, False)
    assert len(blind.chunks) == 1, "as long as the link is not known"
    assert any("made in the run" in line and "the profile has no link" in line for line in spoken(blind))
    assert not any("made in the run" in line for line in spoken(explain(run.with_(profile=written(tmp_path)))))


def written(tmp_path, link=True, names=None):
    """A profile of model mlp, its tensors in the order of their names."""
    known = {slot.name: slot for slot in reversed(layout_of("mlp"))}
    slots = [known[name] for name in names or known]
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


def sent_by_an_engine(comm, run, profile=None):
    """Bytes of every chunk that a run sends once its plan is final."""
    from paceline.workload.resolve import build

    workload = build(run.model)
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=0.01)
    pace = Pace(workload.model, optimizer, comm=comm, axes=compose(run).axes, profile=profile)
    for _ in range(2):
        workload.loss(workload.model, workload.batch(torch.arange(2))).backward()
        pace.step()
    pace.finish()
    return [nbytes for engine in pace.engines for nbytes in engine.step_plan.nbytes], pace.engines[0].names


@pytest.mark.parametrize(
    "axes",
    [
        *(
            {"schedule": text}
            for text in ("wfbp", "fusion(mb=0.5)", "mgwfbp", "priority(partition=0.2)", "dear(mb=0.5)")
        ),
        {"rule": "atc", "exchange": "neighbor(ring)", "schedule": "fusion(mb=0.5)"},
        {"rule": "gradient_tracking", "exchange": "neighbor(ring)", "schedule": "wfbp"},
        {"rule": "push_sum", "exchange": "neighbor", "schedule": "mgwfbp"},
    ],
    ids=lambda axes: " ".join(axes.values()),
)
def test_explain_shows_the_chunks_that_are_sent(axes, tmp_path):
    run = Run(workers=2, model="mlp", **axes)
    [(_, names), _] = run_ranks(2, lambda comm: sent_by_an_engine(comm, Run(workers=2, model="mlp")))
    file = written(tmp_path, names=names)
    [(sent, _), _] = run_ranks(2, lambda comm: sent_by_an_engine(comm, run, read(Path(file))))
    found = explain(run.with_(profile=file))
    assert list(found.chunks) == sent
    assert found.planned


@pytest.fixture
def flows_made(monkeypatch):
    """Every Flow that is made; more than a few per rank are refused."""
    made, plain = [], Flow.__new__

    def make(cls, *values):
        made.append(values)
        assert len(made) <= 16 * MANY, "flows of every pair are listed"
        return plain(cls, *values)

    monkeypatch.setattr(Flow, "__new__", make)
    return made


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "wfbp", "model": "resnet50"},
        {"compress": "topk"},
        {"compress": "gtopk"},
        {"exchange": "ps"},
        {"exchange": "hierarchical", "nodes": "128x8"},
        {"rule": "atc", "exchange": "neighbor(full)"},
        {"strategy": "neighbor_allreduce"},
        {"strategy": "hierarchical_neighbor_allreduce", "nodes": "128x8"},
    ],
    ids=lambda settings: " ".join(settings.values()),
)
def test_explain_of_a_thousand_ranks_lists_no_pairs(settings, flows_made):
    found = explain(Run(workers=MANY, **{"model": "mlp", **settings}))
    assert len(found.received) == MANY
    assert min(found.received) > 0
    assert all(len(line) <= 80 for line in spoken(found) if line.startswith(("received", "nodes")))


def test_the_count_of_flows_can_fail(flows_made):
    [adding, _] = AllReduce().traffic(10**6, Cluster.of_one_host(MANY))
    with pytest.raises(AssertionError, match="flows of every pair"):
        list(adding)


def test_explain_shows_what_crosses_between_nodes_over_a_period():
    run = Run(workers=4, nodes="2x2", model="mlp", rule="atc", exchange="neighbor(inner_outer)")
    found = explain(run)
    assert found.crossing == (found.model_bytes,) * 2
    [line] = [line for line in spoken(found) if line.startswith("nodes")]
    assert "mean of 2 steps" in line
    assert not any(line.startswith("nodes") for line in spoken(explain(run.with_(nodes=None))))


def test_every_lane_places_its_chunks_by_itself():
    """As each has a channel of its own in a run."""
    run = Run(workers=2, model="mlp", exchange="ps(servers=2, colocated=false)", schedule="wfbp")
    one, two = (explain(run.with_(rule=rule)) for rule in ("atc", "gradient_tracking"))
    assert two.received == tuple(2 * nbytes for nbytes in one.received)
    assert two.rounds == 2 * one.rounds

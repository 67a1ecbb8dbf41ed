import json

import pytest
import torch
from torch import nn

from paceline.comm.thread import run_ranks
from paceline.errors import Refused, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.strategy.schedules.auto import choose
from paceline.train.pace import Pace
from paceline.train.planning import WATCHED
from paceline.workload.profile import StepProfile
from tests.train.problems import batches, loss_of, mlp


def train(comm, steps, schedule="mgwfbp", profile=None, model=None, watch=None):
    model = model or mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pace = Pace(
        model, optimizer, comm=comm, axes=compose(Run(workers=comm.size, schedule=schedule)).axes, profile=profile
    )
    plans = []
    for x, y in batches(steps=steps):
        loss_of(model, x, y).backward()
        pace.step()
        plans.append(tuple(chunk.stop for chunk in pace.engines[0].chunks))
        if watch:
            watch(pace)
    return pace, plans


def slow_link(bandwidth=1e9, latency=0.0):
    """Layer times of the little network on a link where cutting pays or does not."""
    names = ("2.bias", "2.weight", "0.bias", "0.weight")
    layout = [{"name": n, "numel": k} for n, k in zip(names, (4, 128, 32, 256), strict=True)]
    return StepProfile.model_validate(
        {
            "layout": layout,
            "forward": [0.5, 0.5, 0.0, 0.0],
            "forward_seconds": 1.0,
            "ready": [1.0, 1.0, 2.0, 3.0],
            "backward": 3.0,
            "link": {"latency": latency, "bandwidth": bandwidth},
        }
    )


def test_every_rank_has_rank_zeros_profile_link_and_plan():
    def work(comm):
        pace, plans = train(comm, WATCHED + 3)
        engine = pace.engines[0]
        return engine.profile, engine.link, plans

    found = run_ranks(3, work)
    assert found[0] == found[1] == found[2]
    profile, link, plans = found[0]
    assert plans[: WATCHED - 1] == [(424,)] * (WATCHED - 1), "it plans before it knows"
    assert profile.names == ("2.bias", "2.weight", "0.bias", "0.weight")
    assert list(profile.ready) == sorted(profile.ready)
    assert 0 < profile.forward[0] < profile.forward_seconds, "the second layer begins after the first"
    assert link.bandwidth > 0


def test_the_hooks_that_watch_are_gone_when_the_plan_is_made():
    def work(comm):
        pace, _ = train(comm, WATCHED + 2)
        return [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in pace.model.modules()], pace.engines[0].log

    for hooks, log in run_ranks(2, work):
        assert set(hooks) == {0}
        assert log is None


@pytest.mark.parametrize(("latency", "cuts"), [(0.0, (4, 132, 164, 424)), (10.0, (424,))])
def test_a_given_profile_and_link_are_used_after_the_first_step(latency, cuts):
    given = slow_link(bandwidth=1e3, latency=latency)
    for pace, plans in run_ranks(2, lambda comm: train(comm, 3, profile=given)):
        assert plans[0] == plans[-1]
        assert pace.engines[0].link.latency == latency
        # without a latency nothing is gained by merging, but tensors that are ready together may be
        assert set(plans[0]) <= set(cuts)


def test_the_profile_of_another_model_is_refused():
    with pytest.raises(WrongCommand, match="of another model: it has no"):
        run_ranks(1, lambda comm: train(comm, 2, profile=slow_link(), model=nn.Sequential(nn.Linear(8, 4))))


def test_a_log_that_somebody_keeps_is_left_alone():
    log = []

    def work(comm):
        model = mlp()
        axes = compose(Run(workers=1, schedule="mgwfbp")).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        pace.record_events(log)
        for x, y in batches(steps=WATCHED + 2):
            loss_of(model, x, y).backward()
            pace.step()
        return pace.engines[0].log is log

    assert run_ranks(1, work) == [True]
    assert [step for _, kind, step, *_ in log if kind == "begin"] == list(range(1 + WATCHED + 2))


def test_a_profile_that_cannot_be_read_is_refused_before_any_worker_starts(tmp_path):
    path = tmp_path / "p.json"
    with pytest.raises(Refused, match="is not a profile"):
        compose(Run(workers=2, profile=str(path)))
    path.write_text(json.dumps(slow_link().to_dict()))
    assert compose(Run(workers=2, profile=str(path))).axes is not None


def test_a_model_whose_parts_are_called_one_by_one_has_a_profile():
    def work(comm):
        model = mlp()
        axes = compose(Run(workers=comm.size, schedule="mgwfbp")).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes)
        for x, y in batches(steps=WATCHED + 1):
            nn.functional.cross_entropy(model[2](model[1](model[0](x))), y).backward()
            pace.step()
        return pace.engines[0].profile

    (profile,) = run_ranks(1, work)
    assert profile.forward[-1] < profile.forward[0] < profile.forward_seconds
    assert profile.ready[0] == 0.0 < profile.ready[-1] == profile.backward


# schedule auto ----------------------------------------------------------------------------------------------


def test_a_later_candidate_must_be_clearly_faster():
    assert choose([1.0, 0.99, 1.2]) == 0
    assert choose([1.0, 0.97, 0.96]) == 1
    assert choose([1.0, 0.97, 0.9]) == 2


def fake_clock(schedule_of, seconds):
    """A clock on which a step takes as long as its schedule is said to take."""
    now = [0.0]

    def clock():
        schedule = schedule_of()
        now[0] += seconds.get(str(schedule), 1.0) / 1000
        return now[0]

    return clock


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("auto", "fusion(mb=4)"),
        ("auto(crossing=true)", "priority(partition=1, credit=4)"),
        ("auto(crossing=true)", "dear"),
        ("auto(crossing=true)", "dear(mb=2.5)"),
    ],
)
def test_auto_keeps_the_candidate_that_was_fastest_on_rank_zero(text, best, capsys):
    def work(comm):
        model, engines = mlp(), []
        # other ranks see other times, and follow all the same
        clock = fake_clock(lambda: engines[0].schedule if engines else None, {best: 0.5 if comm.rank == 0 else 9.0})
        axes = compose(Run(workers=comm.size, schedule=text)).axes
        pace = Pace(model, torch.optim.SGD(model.parameters(), lr=0.1), comm=comm, axes=axes, clock=clock)
        engines += pace.engines
        left = []
        for x, y in batches(steps=40):
            left.append(pace.steps_to_plan)
            loss_of(model, x, y).backward()
            pace.step()
        pace.finish()
        return str(engines[0].schedule), engines[0].tuning, left

    found = run_ranks(2, work)
    assert [schedule for schedule, _, _ in found] == [best, best]
    assert found[0][1] == found[1][1]
    assert found[0][1]["chosen"] == best
    assert f"schedule {text} chose {best} of:" in capsys.readouterr().out
    left = found[0][2]
    assert left[0] == WATCHED + 1
    assert left[WATCHED + 1 :] == list(range(left[WATCHED + 1], 0, -1)) + [0] * (40 - WATCHED - 1 - left[WATCHED + 1])

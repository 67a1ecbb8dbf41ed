import json

import pytest

from paceline import schedules
from paceline.cli import main
from paceline.jobs.explain import explain, spoken
from paceline.jobs.predict import predict
from paceline.run import Run
from paceline.types import Layout, Link, Profile, Slot

LINK = Link(0.01, 1e6)


def profile(count=8, numel=25_000):
    """Layers of 0.1 s forward and 0.2 s backward each; a tensor of 100 kB takes 0.11 s."""
    layout = Layout(tuple(Slot(str(k), numel) for k in range(count)), 4, count)
    ready = tuple(0.2 * (k + 1) for k in range(count))
    return Profile(layout, ready, tuple(0.1 * (count - 1 - k) for k in range(count)))


def exposed(text, given=None, link=LINK):
    given = given or profile()
    schedule = schedules.MENU.make(text)
    sizes = [4 * chunk.numel for chunk in schedule.plan(given, link.seconds).chunks()]
    count = len(given.ready)
    return predict(schedule, given, link, sizes, (0.1 * count, 0.2 * count))


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


def test_crossing_hides_communication_behind_the_next_forward():
    slow = Link(0.001, 3.4e5)  # all-reduce takes as long as forward and backward together
    plain = exposed("mgwfbp", link=slow).exposed
    assert exposed("priority(partition=0.05, credit=0.1)", link=slow).exposed < 0.6 * plain
    assert exposed("dear(mb=0.1)", link=slow).exposed < plain


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

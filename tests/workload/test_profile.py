import json

import pytest

from paceline.errors import WrongCommand
from paceline.types import Layout, Link, Slot
from paceline.workload.profile import StepProfile, read, write

TIMES = {
    "schema": 2,
    "model": "two",
    "batch_size": 8,
    "layout": [{"name": "b", "numel": 3}, {"name": "a", "numel": 5}],
    "itemsize": 4,
    "forward": [0.2, 0.0],
    "forward_seconds": 0.3,
    "ready": [0.1, 0.4],
    "backward": 0.4,
    "step": 1.0,
}


def test_a_profile_survives_its_file(tmp_path):
    profile = StepProfile.model_validate(TIMES)
    write(tmp_path / "p.json", profile)
    assert read(tmp_path / "p.json") == profile
    assert json.loads((tmp_path / "p.json").read_text())["schema"] == 2


def test_a_profile_of_the_first_schema_is_read_and_written_anew(tmp_path):
    (tmp_path / "old.json").write_text(json.dumps({**TIMES, "schema": 1}))
    old = read(tmp_path / "old.json")
    assert (old.layout[0].shape, old.update, old.pack) == ((), 0.0, 0.0)
    write(tmp_path / "new.json", old)
    assert json.loads((tmp_path / "new.json").read_text())["schema"] == 2
    assert read(tmp_path / "new.json").layout == old.layout


def test_a_shape_has_as_many_elements_as_its_tensor():
    wrong = {**TIMES, "layout": [{"name": "b", "numel": 3, "shape": [2, 2]}, {"name": "a", "numel": 5}]}
    with pytest.raises(ValueError, match="shape"):
        StepProfile.model_validate(wrong)


def test_a_record_gives_its_profile_and_its_link(tmp_path):
    path = tmp_path / "record.json"
    network = {"measured": {"latency": 1e-4, "bandwidth": 1e9}}
    path.write_text(json.dumps({"schema": 1, "run": {}, "profile": TIMES, "network": network}))
    assert read(path).measured_link() == Link(1e-4, 1e9)
    assert read(path).names == ("b", "a")


def test_times_follow_the_names_of_another_order():
    profile = StepProfile.model_validate(TIMES).for_layout(Layout((Slot("a", 5), Slot("b", 3)), 4, 2))
    assert (profile.ready, profile.forward) == ((0.4, 0.1), (0.0, 0.2))


def test_the_profile_of_another_model_is_refused():
    with pytest.raises(WrongCommand, match=r"p\.json is of another model: it has no c"):
        StepProfile.model_validate(TIMES).for_layout(Layout((Slot("c", 5),), 4, 1), "p.json")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ready": [0.1]}, "ready has 1 times for 2 tensors"),
        ({"ready": [0.1, -1.0]}, "negative or not finite"),
        ({"forward": [0.1, float("inf")]}, "negative or not finite"),
        ({"schema": 3}, "schema"),
        ({"layout": [], "ready": [], "forward": []}, "layout"),
        ({"color": "red"}, "color"),
    ],
)
def test_a_damaged_profile_is_named(tmp_path, change, complaint):
    path = tmp_path / "p.json"
    path.write_text(json.dumps({**TIMES, **change}))
    with pytest.raises(WrongCommand, match=complaint) as caught:
        read(path)
    assert "is not a profile" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "7", '{"run": {}}', '{"run": {}, "profile": 3}'),
        '{"run": {}, "profile": {"schema": 1}, "network": [1]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(WrongCommand, match="is not a profile"):
        read(path)
    with pytest.raises(WrongCommand, match="is not a profile"):
        read(tmp_path / "nowhere.json")

"""A user's own function."""

import sys
from pathlib import Path

import pytest
import torch

from paceline.errors import BadMember, WorkloadError, WrongCommand
from paceline.workload.resolve import build

MODULE = """
import torch
from torch import nn
from paceline.types import Workload

NUMBER = 3

def net(width=4):
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, width))

def sized(*, classes: int = 6, image_size: int = 9, **others):
    return net(classes)

class Net(nn.Sequential):
    def __init__(self, classes: int = 5):
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, classes))

def whole():
    model = nn.Linear(2, 1)
    return Workload(model, lambda model, x: model(x).mean(), lambda ids: torch.ones(len(ids), 2), "row")

def words():
    return {"model": net()}

def hollow():
    return Workload("linear", None, None)

def frozen():
    return net().requires_grad_(False)

def flat():
    return nn.Conv2d(3, 3, 1)
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """A module `mine` in the current folder, which is not on the path."""
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import a_package_that_is_not_there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    yield
    for name in ("mine", "broken"):
        sys.modules.pop(name, None)


def shapes(workload, ids=64):
    images, labels = workload.batch(torch.arange(ids))
    return images.shape[-1], int(labels.max()) + 1


def test_a_workload_is_taken_as_it_is():
    workload = build("mine:whole")
    assert workload.unit == "row"
    assert workload.batch(torch.arange(3)).shape == (3, 2)


def test_a_bare_module_gets_images_and_cross_entropy():
    workload = build("mine:net(1000)", image_size=8)
    images, labels = workload.batch(torch.arange(4))
    assert images.shape == (4, 3, 8, 8)
    expected = torch.nn.functional.cross_entropy(workload.model(images), labels)
    assert torch.equal(workload.loss(workload.model, (images, labels)), expected)


def test_a_bare_module_has_224_pixels_and_1000_classes_unless_told():
    size, classes = shapes(build("mine:net"), ids=8)
    assert size == 224
    assert classes > 10


def test_samples_follow_the_flags_that_the_function_does_not_take():
    assert shapes(build("mine:net(width=4)", classes=4, image_size=8)) == (8, 4)


def test_samples_follow_the_function_s_own_defaults_settings_and_flags():
    assert shapes(build("mine:sized")) == (9, 6)
    assert shapes(build("mine:sized(classes=2)")) == (9, 2)
    assert shapes(build("mine:sized", classes=3, image_size=7)) == (7, 3)
    assert build("mine:sized", classes=3).model[-1].out_features == 3


def test_a_class_is_as_good_as_a_function():
    assert build("mine:Net(classes=8)").model[-1].out_features == 8


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "nowhere.at_all:net",
            "importing 'nowhere.at_all' failed: ModuleNotFoundError.* try: start in the folder",
        ),
        ("broken:net", "importing 'broken' failed: .*a_package_that_is_not_there"),
        ("mine:missing", "mine has no function 'missing'"),
        ("mine:NUMBER", "NUMBER is a int, not a function"),
    ],
)
def test_a_function_that_cannot_be_had_says_why(text, why):
    with pytest.raises(WrongCommand, match=f"model {text}: {why}"):
        build(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "mine:words",
            "returned a dict: a model function returns a torch.nn.Module or a paceline.types.Workload",
        ),
        ("mine:hollow", "its network is a str"),
        ("mine:frozen", "no trainable parameter"),
    ],
)
def test_what_cannot_be_trained_says_why(text, why):
    with pytest.raises(WorkloadError, match=why):
        build(text)


def test_settings_that_the_function_does_not_take_are_errors():
    with pytest.raises(BadMember, match="mine:whole takes no settings; got classes"):
        build("mine:whole", classes=10)
    with pytest.raises(BadMember, match="mine:net takes width; got sequence_length"):
        build("mine:net", sequence_length=10)
    with pytest.raises(BadMember, match="mine:net takes width; got depth"):
        build("mine:net(depth=10)")


def test_too_few_scores_name_the_flag_that_helps():
    workload = build("mine:net(width=4)", image_size=8)
    with pytest.raises(WorkloadError, match=r"4 scores per image: the labels have 1000 classes. try: --classes 4"):
        workload.loss(workload.model, workload.batch(torch.arange(2)))


def test_scores_of_a_wrong_shape_are_refused():
    workload = build("mine:flat", image_size=8)
    with pytest.raises(WorkloadError, match="one row of class scores per image"):
        workload.loss(workload.model, workload.batch(torch.arange(2)))


def test_the_example_trains(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    workload = build("examples.my_workload:sines(hidden=16)")
    optimizer = torch.optim.Adam(workload.model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        losses.append(workload.loss(workload.model, workload.batch(torch.arange(32))))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert workload.unit == "sine"
    assert losses[-1] < losses[0] / 10

"""Building the Workload that a text names."""

import sys
import types

import pytest
import torch
from torch import nn

from paceline.errors import BadMember, MissingPackage, UnknownName
from paceline.workload.resolve import build


def parameters(text, seed):
    return nn.utils.parameters_to_vector(build(text, seed=seed).model.parameters())


@pytest.mark.parametrize("text", ["mlp", "small_cnn", "mobilenet_v2", "bert_base(layers=1, hidden=32)"])
def test_a_seed_decides_the_first_parameters(text):
    first = parameters(text, seed=1)
    torch.rand(7)  # what the global generator did meanwhile must not matter
    assert torch.equal(parameters(text, seed=1), first)
    assert not torch.equal(parameters(text, seed=2), first)


@pytest.mark.parametrize("text", ["small_cnn", "bert_base(layers=1, hidden=32)"])
def test_building_leaves_the_global_random_state_alone(text):
    before = torch.get_rng_state()
    build(text, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


def test_flags_and_written_settings_reach_the_model():
    images, labels = build("small_cnn(width=4)", classes=3, image_size=12).batch(torch.arange(50))
    assert images.shape == (50, 3, 12, 12)
    assert set(labels.tolist()) == {0, 1, 2}


def test_a_flag_that_the_model_does_not_take_is_an_error():
    with pytest.raises(BadMember, match=r"bert_base takes .*; got classes"):
        build("bert_base", classes=10)
    with pytest.raises(BadMember, match=r"resnet50 takes .*; got sequence_length"):
        build("resnet50", sequence_length=10)


def test_a_setting_written_and_flagged_is_given_twice():
    with pytest.raises(BadMember, match="classes is given twice"):
        build("small_cnn(classes=10)", classes=100)


def test_an_unknown_model_answers_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean resnet50"):
        build("resnet5O")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("inception_v4(image_size=74)", "at least 75 pixels"),
        ("vgg16(image_size=31)", "at least 32 pixels"),
        ("densenet201(image_size=31)", "at least 32 pixels"),
        ("image_compression(image_size=40)", "multiple of 16"),
        ("resnet50(image_size=0)", "at least 1 pixels"),
        ("resnet50(classes=0)", "at least one class"),
        ("resnet50(classes=ten)", "classes takes a whole number; got ten"),
        ("bert_base(sequence_length=513)", "8 to 512 words"),
        ("bert_base(hidden=100)", "multiple of 64"),
        ("bert_base(vocabulary=5)", "at least 32 words"),
    ],
)
def test_a_setting_out_of_range_says_why(text, why):
    with pytest.raises(BadMember, match=why):
        build(text)


def test_torchvision_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingPackage, match=r"torchvision:resnet18 needs torchvision. try: pip install"):
        build("torchvision:resnet18")


def test_bert_says_how_to_install_transformers(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingPackage, match=r"pip install 'paceline\[bert\]'"):
        build("bert_base(layers=1, hidden=32)")


@pytest.fixture
def fake_torchvision(monkeypatch):
    """The two functions of torchvision that we call, as their documentation describes them."""

    def get_model(name, *, weights, num_classes):
        assert weights is None
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))

    models = types.SimpleNamespace(list_models=lambda module: ["resnet18"], get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision", types.SimpleNamespace(models=models))


@pytest.mark.usefixtures("fake_torchvision")
def test_torchvision_models_take_classes_and_image_size():
    workload = build("torchvision:resnet18(classes=7)", image_size=16)
    images, _ = workload.batch(torch.arange(2))
    assert images.shape == (2, 3, 16, 16)
    assert workload.model(images).shape == (2, 7)


@pytest.mark.usefixtures("fake_torchvision")
def test_an_unknown_torchvision_model_answers_with_the_nearest():
    with pytest.raises(UnknownName, match=r"torchvision model 'resnet81' does not exist. try: did you mean resnet18"):
        build("torchvision:resnet81")

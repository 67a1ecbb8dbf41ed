"""layouts.json, and what it says of published sizes."""

import pytest

from paceline.types import Slot
from paceline.workload.describe import catalogue
from paceline.workload.layouts import layout_of, measure, read

# Published parameters and trainable tensors.
SIZES = {
    "resnet18": (11_689_512, 62),
    "resnet34": (21_797_672, 110),
    "resnet50": (25_557_032, 161),
    "resnet101": (44_549_160, 314),
    "resnet152": (60_192_808, 467),
    "vgg16": (138_357_544, 32),
    "vgg19": (143_667_240, 38),
    "mobilenet_v2": (3_504_872, 158),
    "densenet201": (20_013_928, 604),
    "inception_v4": (42_679_816, 449),
    "image_compression": (11_238_723, 34),
    "bert_base": (110_106_428, 206),
    "bert_large": (336_226_108, 398),
    "resnet50(bias=true, classes=10)": (23_555_082, 214),
    "mobilenet_v2(classes=10)": (2_236_682, 158),
}


def test_the_file_matches_the_models():
    assert measure() == read(), "run: python -m paceline.workload.layouts"


@pytest.mark.parametrize("text", SIZES)
def test_sizes_are_the_published_ones(text):
    (found,) = [entry for entry in catalogue() if entry.name == text]
    assert (found.parameters, found.tensors) == SIZES[text]
    assert found.bytes == 4 * found.parameters


def test_a_layout_is_found_however_it_is_spelled():
    assert layout_of("resnet50")[0] == Slot("conv1.weight", 9408, (64, 3, 7, 7))
    assert layout_of("resnet50()") == layout_of("resnet50")
    assert layout_of("resnet50(classes=10,bias=true)") == layout_of("resnet50(bias=true, classes=10)")


def test_a_layout_that_is_not_listed_is_none():
    assert layout_of("resnet50(classes=11)") is None
    assert layout_of("mine:net") is None

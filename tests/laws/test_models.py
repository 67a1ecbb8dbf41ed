"""What every model of the menu promises."""

import subprocess
import sys

import pytest
import torch

from paceline.errors import BadMember
from paceline.workload.models import MENU
from paceline.workload.resolve import build

# As small as each network allows, so that the laws run in seconds.
SMALLEST = {
    "inception_v4": "(classes=10, image_size=75)",
    "image_compression": "(image_size=32)",
    "bert_base": "(layers=2, hidden=64, sequence_length=32, vocabulary=500)",
    "bert_large": "(layers=2, hidden=64, sequence_length=32, vocabulary=500)",
}


@pytest.fixture(scope="module", params=MENU.names())
def workload(request):
    return build(request.param + SMALLEST.get(request.param, "(classes=10, image_size=32)"))


def test_a_sample_depends_on_its_id_alone(workload):
    ids = torch.tensor([70000, 3, 5, 3, 12345])
    together = workload.batch(ids)
    for index, one in enumerate(ids):
        alone = workload.batch(one.reshape(1))
        assert all(torch.equal(a[index], b[0]) for a, b in zip(together, alone, strict=True))


def test_different_ids_give_different_samples(workload):
    first, second = workload.batch(torch.tensor([0, 1]))[0]
    assert not torch.equal(first, second)


def test_a_batch_is_a_tuple_of_tensors_with_one_row_per_id(workload):
    batch = workload.batch(torch.arange(3))
    assert isinstance(batch, tuple)
    assert all(len(part) == 3 and part.device.type == "cpu" for part in batch)


def test_making_a_batch_leaves_the_global_random_state_alone(workload):
    before = torch.get_rng_state()
    workload.batch(torch.arange(4))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loss_is_finite_and_every_parameter_gets_a_gradient(workload):
    with torch.random.fork_rng(devices=[]):
        loss = workload.loss(workload.model, workload.batch(torch.arange(2)))
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()
    without = [name for name, tensor in workload.model.named_parameters() if tensor.grad is None]
    assert without == []
    assert all(tensor.grad.isfinite().all() for tensor in workload.model.parameters())


@pytest.mark.parametrize("word", MENU.names())
def test_a_setting_that_the_model_does_not_take_is_named(word):
    with pytest.raises(BadMember, match=rf"{word} takes .*; got colour"):
        build(f"{word}(colour=3)")


def test_listing_and_weighing_the_menu_loads_no_torch():
    code = (
        "import sys; from paceline.workload.models import MENU; from paceline.workload.describe import catalogue;"
        "from paceline.workload.layouts import layout_of; import paceline.workload.resolve;"
        "assert MENU.names() and catalogue() and layout_of('resnet50'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

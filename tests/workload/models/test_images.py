"""Images made from ids."""

import pytest
import torch

from paceline.workload.models._images import Images
from paceline.workload.models._scatter import scatter
from paceline.workload.resolve import build


def test_every_class_occurs_about_equally_often():
    _, labels = Images(4, classes=10)(torch.arange(10_000))
    # 1000 expected each; six standard deviations are 180
    assert all(abs(count - 1000) < 180 for count in labels.bincount(minlength=10).tolist())


def test_images_of_one_class_resemble_each_other_more_than_others():
    images, labels = Images(32, classes=4)(torch.arange(64))
    correlation = torch.corrcoef(images.flatten(1))
    same = labels[:, None] == labels[None, :]
    apart = ~torch.eye(64, dtype=torch.bool)
    # half of the variance is the pattern of the class; patterns of 192 cells are apart by 1/sqrt(192) or so
    assert correlation[same & apart].mean() > 0.4
    assert correlation[~same].abs().mean() < 0.2


def test_pixels_have_mean_zero_and_variance_one():
    images, _ = Images(24, classes=1000)(torch.arange(512))
    assert images.mean().abs() < 0.05
    assert abs(images.var() - 1) < 0.05


@pytest.mark.parametrize("size", [1, 5, 8, 33])
def test_any_image_size_works(size):
    images, _ = Images(size, classes=3)(torch.arange(2))
    assert images.shape == (2, 3, size, size)


def test_samples_stay_the_same_from_release_to_release():
    assert scatter(torch.tensor([0, 1, 2**40])).tolist() == [
        7070836379803831727,
        7960286522194355700,
        1816945705467351922,
    ]
    _, labels = Images(4, classes=10)(torch.arange(8))
    assert labels.tolist() == [2, 2, 6, 9, 1, 9, 3, 6]


def test_a_small_network_learns_the_labels():
    workload = build("mlp(hidden=32)", image_size=8)
    optimizer = torch.optim.SGD(workload.model.parameters(), lr=0.1)
    for step in range(100):
        loss = workload.loss(workload.model, workload.batch(torch.arange(32) + 32 * step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    fresh = workload.loss(workload.model, workload.batch(torch.arange(100_000, 100_200)))
    assert fresh < 0.5  # guessing among ten classes gives 2.3


def test_a_loss_over_a_batch_is_the_mean_over_equal_shares():
    workload = build("small_cnn(width=4)", image_size=8)
    whole = workload.loss(workload.model, workload.batch(torch.arange(8)))
    halves = [workload.loss(workload.model, workload.batch(torch.arange(4) + 4 * k)) for k in range(2)]
    torch.testing.assert_close(whole, sum(halves) / 2)

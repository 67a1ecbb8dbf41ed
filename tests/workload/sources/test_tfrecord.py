"""Shards: packed from another source, read in lanes, and wrong in every way."""

import io
import json

import pytest
import torch

from paceline.errors import DamagedFile, WorkloadError, WrongCommand
from paceline.run.run import Run
from paceline.train.build import workload_of
from paceline.types import View, Workload
from paceline.workload.feed import Feed
from paceline.workload.sources import MENU
from paceline.workload.tfrecord.example import encode
from paceline.workload.tfrecord.frames import write
from paceline.workload.tfrecord.pack import pack
from tests.workload.sources.idxfiles import write_folder

NO_WORKLOAD = Workload(None, None, None)


@pytest.fixture
def packed(tmp_path):
    source = MENU.make(f"idx({write_folder(tmp_path / 'idx', train=40)})")
    pack(source.samples_of(NO_WORKLOAD), source.tests(), tmp_path / "packed", 5, lambda done, count: None)
    return source, tmp_path / "packed"


def test_packed_samples_are_those_of_the_source(packed):
    source, folder = packed
    shards = MENU.make(f"tfrecord({folder})")
    ids = torch.tensor([0, 39, 7, 8])
    for a, b in zip(shards.samples_of(NO_WORKLOAD)(ids), source.samples_of(NO_WORKLOAD)(ids), strict=True):
        assert torch.equal(a, b)
    assert shards.fit() == source.fit()
    tests = shards.tests()
    assert len(tests) == len(source.tests())
    assert torch.equal(tests(ids[:1])[0], source.tests()(ids[:1])[0])
    assert sorted(path.name for path in folder.iterdir())[-2:] == ["train-00003-of-00005", "train-00004-of-00005"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_sample_comes_once_per_epoch_for_any_number_of_workers(packed, size):
    source = MENU.make(f"tfrecord({packed[1]}, lanes=3, window=4)")
    order, seen = source.order(8, 1), []
    for rank in range(size):
        feed = Feed(source.samples_of(NO_WORKLOAD), order, View(rank, size))
        for _ in range(order.steps):
            images, _ = next(feed)
            seen += [tuple(image.flatten().tolist()) for image in images[: feed.count]]
        feed.close()
    every = source.samples_of(NO_WORKLOAD)(torch.arange(40))[0]
    assert sorted(seen) == sorted(tuple(image.flatten().tolist()) for image in every)


def test_a_model_is_tried_on_one_sample_without_making_an_order(packed, monkeypatch):
    """An order whose global batches have one sample takes 2.5 s for 160,000 records, and much memory."""

    def never(*_):
        raise AssertionError("an order was made")

    monkeypatch.setattr("paceline.workload.order.Laned.ids", never)
    source = MENU.make(f"tfrecord({packed[1]})")
    workload_of(Run(model="small_cnn", source=str(source)), source)
    with pytest.raises(WorkloadError, match=r"resnet18 cannot take the samples of tfrecord.*\(1 x 4 x 4, 1 number\)"):
        workload_of(Run(model="resnet18", source=str(source)), source)


def test_a_damaged_record_is_named_when_it_is_read(packed):
    path = packed[1] / "train-00001-of-00005"
    content = bytearray(path.read_bytes())
    content[40] ^= 4
    path.write_bytes(content)
    with pytest.raises(DamagedFile, match=r"train-00001-of-00005 is damaged at offset 0: record 0"):
        MENU.make(f"tfrecord({packed[1]})").samples_of(NO_WORKLOAD)(torch.tensor([8]))


def test_a_shard_of_another_size_than_its_index_is_refused(packed):
    path = packed[1] / "train-00001-of-00005"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match="bytes"):
        MENU.make(f"tfrecord({packed[1]})").order(8, 0)


def test_a_folder_that_is_not_empty_is_not_packed_into(packed):
    samples = packed[0].samples_of(NO_WORKLOAD)
    with pytest.raises(WrongCommand, match="exists and is not empty"):
        pack(samples, None, packed[1], 5, lambda done, count: None)
    with pytest.raises(WrongCommand, match="--shards 41"):
        pack(samples, None, packed[1] / "new", 41, lambda done, count: None)


def picture(color, size=(20, 30)):
    from PIL import Image

    stream = io.BytesIO()
    Image.new("RGB", size, color).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """Shards as others write them, without an index; labels are counted from 1."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "imagenet"
    folder.mkdir()
    for shard in range(2):
        rows = [
            encode({"image/encoded": picture((k * 30, 0, 0), (20 + k, 30)), "image/class/label": [1 + k]})
            for k in range(4)
        ]
        with open(folder / f"train-{shard:05d}-of-00002", "wb") as stream:
            write(stream, rows)
    return folder


def test_shards_of_others_are_scanned_once_and_images_are_decoded(imagenet, tmp_path):
    source = MENU.make(f"tfrecord({imagenet}, size=16, classes=4)")
    assert source.fit() == {"channels": 3, "image_size": 16, "classes": 4}
    images, labels = source.samples_of(NO_WORKLOAD)(torch.arange(8))
    assert images.shape == (8, 3, 16, 16)
    assert labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    kept = list((tmp_path / "cache").rglob("*.json"))
    assert len(kept) == 2
    assert {len(json.loads(path.read_text())) for path in kept} == {4}
    assert source.tests() is None


def test_augmentation_depends_on_seed_epoch_and_sample_alone(tmp_path):
    from PIL import Image

    from paceline.workload.pictures import decode, dice_of

    stream = io.BytesIO()
    Image.effect_noise((40, 30), 90).convert("RGB").save(stream, "PNG")
    made = {
        key: decode(stream.getvalue(), "x", 16, dice_of(*key)) for key in [(0, 0, 1), (0, 1, 1), (1, 0, 1), (0, 0, 2)]
    }
    assert decode(stream.getvalue(), "x", 16, dice_of(0, 0, 1)) == made[0, 0, 1]
    assert len(set(made.values())) == 4


def test_labels_out_of_range_and_broken_images_name_the_sample(imagenet):
    with pytest.raises(WorkloadError, match=r"record 3 of .*train-00000-of-00002 has the label 4: labels are 1 to 3"):
        MENU.make(f"tfrecord({imagenet}, classes=3)").samples_of(NO_WORKLOAD)(torch.arange(4))
    with open(imagenet / "train-00002-of-00002", "wb") as stream:
        write(
            stream, [encode({"image/encoded": b"no image", "image/class/label": [1]}), encode({"a": [1]}), b"\x0a\xff"]
        )
    samples = MENU.make(f"tfrecord({imagenet})").samples_of(NO_WORKLOAD)
    with pytest.raises(WorkloadError, match=r"record 0 of .* is no image"):
        samples(torch.tensor([8]))
    with pytest.raises(WorkloadError, match=r"record 1 of .* has no field image/encoded: its fields are a"):
        samples(torch.tensor([9]))
    with pytest.raises(DamagedFile, match="record 2 is no Example"):
        samples(torch.tensor([10]))


def test_folders_without_shards_are_refused(tmp_path):
    with pytest.raises(WrongCommand, match="no such folder"):
        MENU.make(f"tfrecord({tmp_path / 'x'})").fit()
    with pytest.raises(WrongCommand, match="holds no train-00000"):
        MENU.make(f"tfrecord({tmp_path})").fit()

"""Images from idx files, and the errors of damaged ones."""

import gzip
import tracemalloc

import pytest
import torch

from paceline.errors import BadMember, DamagedFile, Refused, WrongCommand
from paceline.run.compose.compose import compose
from paceline.run.run import Run
from paceline.types import Workload
from paceline.workload.sources import MENU
from paceline.workload.sources._idxfile import look
from tests.workload.sources.idxfiles import idx_bytes, write_folder

NO_WORKLOAD = Workload(None, None, None)


def first(source, size=40):
    return source.samples_of(NO_WORKLOAD)(source.order(size, 0).ids(0, 0))


@pytest.fixture(params=[False, True], ids=["plain", "gz"])
def folder(request, tmp_path):
    return write_folder(tmp_path / "idx", packed=request.param)


def place(folder, name):
    return next(path for path in (folder / name, folder / f"{name}.gz") if path.exists())


def test_samples_are_the_bytes_of_the_file_with_mean_0_and_deviation_1(folder):
    images, labels = first(MENU.make(f"idx({folder})"))
    assert images.shape == (40, 1, 4, 4)
    assert labels.dtype == torch.int64
    assert images.mean().abs() < 1e-5
    assert images.std(unbiased=False) == pytest.approx(1.0, abs=1e-5)
    raw = torch.tensor(list(look(place(folder, "train-images-idx3-ubyte"), 3).read())).view(40, -1)
    order = sorted(range(40), key=lambda k: raw[k].sum())
    found = sorted(images.flatten(1).sum(1).tolist())
    expected = ((raw.float() - raw.float().mean()) / raw.float().std(unbiased=False)).sum(1)[order]
    assert torch.allclose(torch.tensor(found), expected, atol=1e-4)


def test_brightness_still_tells_the_label(folder):
    images, labels = first(MENU.make(f"idx({folder})"))
    bright = images.flatten(1).mean(1)
    assert max(bright[labels == 0]) < min(bright[labels == 1]) < max(bright[labels == 1]) < min(bright[labels == 2])


def test_a_source_says_which_model_fits(folder):
    assert MENU.make(f"idx({folder})").fit() == {"channels": 1, "image_size": 4, "classes": 3}
    assert MENU.make(f"idx({folder}, channels=3)").fit()["channels"] == 3


def test_three_channels_repeat_the_gray_image(folder):
    images, _ = first(MENU.make(f"idx({folder}, channels=3)"))
    assert images.shape == (40, 3, 4, 4)
    assert torch.equal(images[:, 0], images[:, 2])


def test_the_test_part_is_normalized_like_the_training_part(folder):
    source = MENU.make(f"idx({folder})")
    tests = source.tests()
    assert len(tests) == 13
    images, labels = tests(torch.tensor([0, 12]))
    assert labels.tolist() == [0, 0]
    raw = torch.tensor(list(look(place(folder, "t10k-images-idx3-ubyte"), 3).read())).view(13, 4, 4)
    train = torch.tensor(list(look(place(folder, "train-images-idx3-ubyte"), 3).read())).double()
    expected = (raw[[0, 12]] - train.mean()) / train.std(unbiased=False)
    assert torch.allclose(images[:, 0].double(), expected, atol=1e-5)


def test_without_test_files_there_is_no_test_part(folder):
    place(folder, "t10k-images-idx3-ubyte").unlink()
    assert MENU.make(f"idx({folder})").tests() is None


def test_a_missing_file_is_named_with_what_to_install(tmp_path):
    with pytest.raises(WrongCommand, match=r"holds no train-images-idx3-ubyte.*apt-get install dataset-fashion-mnist"):
        MENU.make(f"idx({tmp_path})").fit()


def test_images_that_are_not_square_are_refused(folder):
    place(folder, "train-images-idx3-ubyte").write_bytes(idx_bytes(torch.zeros(40, 4, 5, dtype=torch.int64)))
    with pytest.raises(WrongCommand, match="4 x 5"):
        MENU.make(f"idx({folder})").fit()


@pytest.mark.parametrize("channels", [0, 2])
def test_other_channels_are_refused(channels):
    with pytest.raises(BadMember, match="gray"):
        MENU.make(f"idx(folder, channels={channels})")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"source": "idx(/nowhere)"}, "/nowhere holds no train-images-idx3-ubyte"),
        ({"classes": 2}, r"--classes 2 with source idx.*: its samples have 3"),
        ({"image_size": 32}, r"--image-size 32 with source idx.*: its samples have 4"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_worker_starts(folder, settings, complaint):
    with pytest.raises(Refused, match=complaint):
        compose(Run(model="mlp", **{"source": f"idx({folder})", **settings}))


def test_more_classes_than_labels_are_fine(folder):
    compose(Run(model="mlp", source=f"idx({folder})", classes=5, image_size=4))


def damage(path, change):
    raw = path.read_bytes()
    packed = path.suffix == ".gz"
    raw = change(gzip.decompress(raw) if packed else raw)
    path.write_bytes(gzip.compress(raw) if packed else raw)


DAMAGES = {
    "empty": (lambda raw: b"", 0, "it ends there, and 4 more were due"),
    "another format": (lambda raw: b"PK\3\4" + raw[4:], 0, "504b0304"),
    "floats": (lambda raw: b"\0\0\x0d\3" + raw[4:], 0, "is not how an idx file"),
    "end in the header": (lambda raw: raw[:10], 10, "it ends there, and 6 more were due"),
    "end in the images": (lambda raw: raw[:100], None, ""),
    "more than promised": (lambda raw: raw + b"x", 656, "it goes on"),
    "huge sizes": (lambda raw: raw[:4] + b"\xff" * 12 + raw[16:], 4, "cannot hold them"),
    "no images": (lambda raw: raw[:4] + bytes(4) + raw[8:], 4, "0 x 4 x 4"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_named_with_its_offset(folder, name):
    change, offset, why = DAMAGES[name]
    path = place(folder, "train-images-idx3-ubyte")
    damage(path, change)
    with pytest.raises(DamagedFile, match="train-images-idx3-ubyte") as caught:
        first(MENU.make(f"idx({folder})"))
    assert why in str(caught.value)
    # whether a header can be true is seen at once in a plain file, and where the bytes end in a packed one
    assert caught.value.offset == (offset if offset is not None else 100 if path.suffix else 4)


def test_a_broken_gzip_stream_is_named(tmp_path):
    folder = write_folder(tmp_path / "idx", packed=True)
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(DamagedFile, match="cannot be unpacked"):
        MENU.make(f"idx({folder})").fit()


def test_labels_must_be_as_many_as_images(folder):
    place(folder, "train-labels-idx1-ubyte").write_bytes(idx_bytes(torch.zeros(39, dtype=torch.int64)))
    with pytest.raises(DamagedFile, match="39 labels for 40 images"):
        MENU.make(f"idx({folder})").order(8, 0)


def test_a_damaged_size_takes_no_memory(tmp_path):
    """A header that promises 60 MB, in a packed file large enough that it could be true, but with little inside."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    noise = torch.randint(0, 256, (70_000,), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    head = bytes([0, 0, 8, 3]) + (60_000_000).to_bytes(4, "big") + (1).to_bytes(4, "big") * 2
    path.write_bytes(gzip.compress(head + bytes(noise.tolist())))
    file = look(path, 3)
    assert file.nbytes == 60_000_000
    tracemalloc.start()
    with pytest.raises(DamagedFile, match="offset 70016"):
        file.read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000

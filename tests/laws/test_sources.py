"""What every source of the menu promises."""

import subprocess
import sys
from itertools import islice

import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from paceline.errors import WrongCommand
from paceline.types import Cursor, View
from paceline.workload.feed import Feed
from paceline.workload.resolve import build
from paceline.workload.sources import MENU
from paceline.workload.sources._source import Streaming
from paceline.workload.tfrecord.pack import pack
from tests.workload.sources.idxfiles import write_folder
from tests.workload.sources.test_pictures import cifar

# Each source as it is run here, with 40 samples.
SOURCES = [
    "fake(samples=40)",
    "fake(location=cpu, samples=40)",
    "idx(FOLDER)",
    "idx(FOLDER, channels=3)",
    "cifar10(FOLDER/cifar)",
    "imagefolder(FOLDER/images, size=8)",
    "tfrecord(FOLDER/packed, lanes=3, window=4)",
    "dataset(tests.laws.test_sources:own)",
]


# Sources without an order: tests/workload/stream has theirs.
STREAMS = ["queue(fake(cpu))", "zmq(tcp://127.0.0.1:5555)"]


def own():
    """A user's dataset of 40 images."""
    dice = torch.Generator().manual_seed(3)
    return TensorDataset(torch.randn(40, 3, 4, 4, generator=dice), torch.arange(40) % 10)


def take(source, count, *, view=View(0, 1), cursor=Cursor()):  # noqa: B008 frozen values
    workload = build("mlp(hidden=4, image_size=4)")
    samples, order = source.samples_of(workload), source.order(8, cursor.seed)
    feed = Feed(samples, order, view, cursor=cursor, constant=source.constant)
    batches = [tuple(part[: feed.count] for part in batch) for batch in islice(feed, count)]  # without stand-ins
    feed.close()
    return batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("files") / "idx", train=40, packed=True)
    cifar(folder / "cifar", 20)
    for k in range(40):
        (folder / "images" / "train" / f"class-{k % 4}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9 + k, 12), (6 * k, 0, 99)).save(folder / "images" / "train" / f"class-{k % 4}" / f"{k}.png")
    source = MENU.make(f"idx({folder})")
    pack(source.samples_of(None), source.tests(), folder / "packed", 5, lambda done, count: None)
    return folder


@pytest.fixture(params=SOURCES)
def source(request, folder):
    return MENU.make(request.param.replace("FOLDER", str(folder)))


def test_every_source_of_the_menu_is_tested_here():
    assert {text.partition("(")[0] for text in SOURCES + STREAMS} == set(MENU.names())


@pytest.mark.parametrize("text", STREAMS)
def test_a_stream_prints_as_it_is_written_and_says_its_kind(text):
    source = MENU.make(text)
    assert MENU.make(str(source)) == source
    assert source.kind == "stream"
    assert isinstance(source, Streaming)
    assert not source.constant
    assert source.fit() == {}
    assert source.tests() is None


def test_a_source_prints_as_it_is_written(source):
    assert MENU.make(str(source)) == source


def test_a_source_says_its_word_and_kind(source):
    assert source.name in MENU.names()
    assert source.kind in ("indexable", "stream")


def test_a_source_says_what_fits_its_samples(source):
    fit = source.fit()
    assert set(fit) <= {"channels", "image_size", "classes", "sequence_length"}
    images, labels = take(source, 1)[0]
    assert fit.get("channels", 3) == images.shape[1]
    assert fit.get("image_size", 4) == images.shape[2]
    assert int(labels.max()) < fit.get("classes", 10)


def test_a_test_part_gives_batches_by_ids(source):
    tests = source.tests()
    if tests is not None:
        images, labels = tests(torch.tensor([0, len(tests) - 1]))
        assert len(images) == len(labels) == 2
        assert torch.equal(tests(torch.tensor([len(tests) - 1]))[0][0], images[1])


def test_an_epoch_counts_global_batches_and_the_short_one(source):
    assert source.order(8, 0).steps == 5
    assert source.order(9, 0).steps == 5


def test_a_global_batch_larger_than_the_source_is_refused(source):
    with pytest.raises(WrongCommand, match="only 40 samples"):
        _ = source.order(41, 0).steps


def test_ranks_together_see_what_one_rank_sees(source):
    for step, whole in enumerate(take(source, 7)):
        shares = [take(source, 7, view=View(rank, 3))[step] for rank in range(3)]
        for index, part in enumerate(whole):
            assert torch.equal(torch.cat([share[index] for share in shares]), part)


def test_a_source_resumes_from_a_cursor(source):
    whole, resumed = take(source, 8), take(source, 3, cursor=Cursor(epoch=1, step=0))
    for a, b in zip(whole[5:], resumed, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_source_leaves_the_global_random_state_alone(source):
    before = torch.get_rng_state()
    take(source, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_listing_and_making_sources_loads_no_torch():
    code = (
        "import sys; from paceline.workload.sources import MENU; MENU.make('fake(cpu)').order(8, 0).steps;"
        "[MENU.load(word) for word in MENU.names()];"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

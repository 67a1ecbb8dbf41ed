"""cifar10, imagefolder and a user's own dataset."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from paceline.errors import DamagedFile, WorkloadError, WrongCommand
from paceline.types import Workload
from paceline.workload.sources import MENU

NO_WORKLOAD = Workload(None, None, None)
HERE = "tests.workload.sources.test_pictures"


def cifar(folder, count=12):
    folder.mkdir()
    dice = torch.Generator().manual_seed(2)
    for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
        rows = torch.randint(0, 256, (count, 3073), generator=dice, dtype=torch.uint8)
        rows[:, 0] %= 10
        (folder / name).write_bytes(rows.numpy().tobytes())
    return folder


def test_cifar_images_have_mean_0_and_deviation_1_per_channel(tmp_path):
    source = MENU.make(f"cifar10({cifar(tmp_path / 'c')})")
    images, labels = source.samples_of(NO_WORKLOAD)(torch.arange(24))
    assert images.shape == (24, 3, 32, 32)
    assert images.mean((0, 2, 3)).abs().max() < 1e-3
    assert labels.max() < 10
    assert len(source.tests()) == 12
    assert source.order(8, 0).steps == 3


def test_damaged_cifar_files_are_named(tmp_path):
    folder = cifar(tmp_path / "c")
    content = bytearray((folder / "data_batch_1.bin").read_bytes())
    content[3073 * 5] = 77
    (folder / "data_batch_1.bin").write_bytes(content)
    with pytest.raises(DamagedFile, match="sample 5 has the label 77"):
        MENU.make(f"cifar10({folder})").samples_of(NO_WORKLOAD)
    (folder / "data_batch_1.bin").write_bytes(content[:-1])
    with pytest.raises(DamagedFile, match="not made of records"):
        MENU.make(f"cifar10({folder})").fit()
    with pytest.raises(WrongCommand, match=r"no data_batch_1.bin"):
        MENU.make(f"cifar10({tmp_path})").fit()


def test_folders_are_classes_and_images_of_any_size_fit(tmp_path):
    from PIL import Image

    for part in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for k in range(3):
                Image.new("RGB", (10 + 9 * k, 20), (number * 200, 0, 0)).save(tmp_path / part / name / f"{k}.png")
    source = MENU.make(f"imagefolder({tmp_path}, size=8)")
    assert source.fit() == {"channels": 3, "image_size": 8, "classes": 2}
    images, labels = source.samples_of(NO_WORKLOAD)(torch.arange(6))
    assert labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.shape == (6, 3, 8, 8)
    assert images[:3, 0].max() < images[3:, 0].min()
    assert len(source.tests()) == 6
    (tmp_path / "train" / "cat" / "0.png").write_bytes(b"no image")
    with pytest.raises(WorkloadError, match=r"cat/0.png is no image"):
        source.samples_of(NO_WORKLOAD)(torch.tensor([0]))
    (tmp_path / "val" / "bird").mkdir()
    with pytest.raises(WrongCommand, match=r"class bird in .* has no training images"):
        source.tests()


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(WrongCommand, match="holds no folders of classes"):
        MENU.make(f"imagefolder({tmp_path})").fit()
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(WrongCommand, match="holds no images"):
        MENU.make(f"imagefolder({tmp_path})").order(8, 0)


def numbers():
    return TensorDataset(torch.arange(10.0), torch.arange(10))


def loader():
    return DataLoader(numbers(), 4, collate_fn=lambda rows: {"x": torch.stack([x for x, _ in rows])})


def loader_with_processes():
    return DataLoader(numbers(), 4, num_workers=2)


def stream():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    return Stream()


def texts():
    return [object(), object()]


def uneven():
    return [torch.zeros(k) for k in range(5)]


def test_a_users_dataset_is_a_source():
    source = MENU.make(f"dataset({HERE}:numbers)")
    x, _ = source.samples_of(NO_WORKLOAD)(torch.tensor([3, 1]))
    assert x.tolist() == [3.0, 1.0]
    assert source.order(4, 0).steps == 3
    batch = MENU.make(f"dataset({HERE}:loader)").samples_of(NO_WORKLOAD)(torch.tensor([2]))
    assert batch["x"].tolist() == [2.0]


def test_a_note_says_that_the_processes_of_a_loader_are_not_used():
    [note] = MENU.make(f"dataset({HERE}:loader_with_processes)").notes()
    assert note.startswith(f"samples of dataset({HERE}:loader_with_processes) are made in a thread of each worker")
    remedy = MENU.make(note.partition("try: ")[2])
    assert (remedy.producers, remedy.inner) == (2, MENU.make(f"dataset({HERE}:loader_with_processes)"))
    assert MENU.make(f"dataset({HERE}:loader)").notes() == MENU.make(f"dataset({HERE}:numbers)").notes() == ()


def test_wrong_datasets_are_refused():
    with pytest.raises(WorkloadError, match=r"returned a Stream: it has no samples by number.*worker.batches"):
        MENU.make(f"dataset({HERE}:stream)").order(2, 0)
    with pytest.raises(WorkloadError, match=r"sample 4 does not fit to sample 1: .*equal size.*collate_fn"):
        MENU.make(f"dataset({HERE}:uneven)").samples_of(NO_WORKLOAD)(torch.tensor([1, 1, 4]))
    with pytest.raises(WorkloadError, match=r"samples 0, 1, ... cannot be put together.*collate_fn"):
        MENU.make(f"dataset({HERE}:texts)").samples_of(NO_WORKLOAD)(torch.tensor([0, 1]))
    with pytest.raises(WrongCommand, match="source nowhere:x: importing 'nowhere' failed"):
        MENU.make("dataset(nowhere:x)").order(2, 0)
    with pytest.raises(WrongCommand, match="it names a function"):
        MENU.make("dataset(numbers)").order(2, 0)

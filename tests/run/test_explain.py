"""Explaining a run fetches nothing: a source in an object store counts with the samples that it declares."""

import pytest

from paceline.errors import Refused
from paceline.run.explain import explain
from paceline.run.run import Run
from paceline.workload.tfrecord import places


@pytest.fixture
def no_network(monkeypatch):
    def reached(*_, **__):
        raise AssertionError("the object store was asked")

    monkeypatch.setattr(places, "Bucket", reached)


@pytest.mark.parametrize(
    "source", ["tfrecord(s3://b/p, size=32, classes=7)", "queue(tfrecord(s3://b/p, size=32, classes=7))"]
)
def test_a_source_in_an_object_store_is_explained_without_the_network(source, no_network):
    shown = explain(Run(workers=2, model="small_cnn", source=source))
    alike = explain(Run(workers=2, model="small_cnn", image_size=32, classes=7))
    assert shown.model_bytes == alike.model_bytes
    assert f"{source} is not read here: images of 32 pixels and 7 classes, as its settings say" in shown.notes
    assert not [note for note in alike.notes if "not read" in note]


def test_what_is_wrong_with_the_other_words_is_still_refused(no_network):
    with pytest.raises(Refused, match="a stream has no epochs"):
        explain(Run(workers=2, model="small_cnn", source="queue(tfrecord(s3://b/p))", epochs=2))


def test_a_folder_of_this_machine_is_read(tmp_path):
    with pytest.raises(Refused, match="no such folder"):
        explain(Run(workers=2, model="small_cnn", source=f"tfrecord({tmp_path / 'none'})"))

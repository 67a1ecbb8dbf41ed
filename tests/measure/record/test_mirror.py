"""Records that are mirrored in a folder: what was measured here is never lost, and no key leaves the folder."""

import json
import multiprocessing

import pytest

from paceline.errors import StoreFailed, WrongCommand
from paceline.measure.record import mirror as mirrors
from paceline.measure.record.mirror import TAGS, Mirror
from paceline.workload.objects.address import Item


class FakeBucket:
    """A bucket in memory. `down` makes uploads fail; `cut` makes reads of one key fail."""

    def __init__(self):
        self.objects, self.down, self.cut, self.written, self.endpoint = {}, False, "", [], "http://127.0.0.1:1"

    def listing(self):
        return [Item("b", key, len(data), tag) for key, (data, tag) in sorted(self.objects.items())]

    def read(self, item, start, stop):
        if item.key == self.cut:
            raise StoreFailed(f"{item}", why="broken connection")
        return memoryview(self.objects[item.key][0])[start:stop]

    def write(self, key, data):
        if self.down:
            raise StoreFailed(key, why="cannot be reached")
        self.put(key, data)
        self.written.append(key)
        return self.objects[key][1]

    def put(self, key, data):
        self.objects[key] = (data, f"tag{len(self.written)}-{hash(data)}")


@pytest.fixture
def bucket(monkeypatch):
    bucket = FakeBucket()
    monkeypatch.setattr(mirrors, "Bucket", lambda address, environ: bucket)
    return bucket


@pytest.fixture
def mirror(bucket, tmp_path):
    return lambda: Mirror("s3://b/p", {"XDG_CACHE_HOME": str(tmp_path)})


def test_a_file_that_was_changed_here_survives_an_upload_that_failed(bucket, mirror):
    bucket.put("p/a.json", b"old")
    first = mirror()
    first.pull()
    (first.folder / "a.json").write_bytes(b"measured again")
    (first.folder / "b.json").write_bytes(b"new")
    bucket.down = True
    with pytest.raises(StoreFailed):
        first.push()
    bucket.down = False
    second = mirror()
    second.pull()
    assert (second.folder / "a.json").read_bytes() == b"measured again"
    assert second.push() == ["a.json", "b.json"]
    assert bucket.objects["p/a.json"][0] == b"measured again"
    assert mirror().push() == []


def test_another_process_that_pulls_keeps_what_this_one_has_changed(bucket, mirror):
    bucket.put("p/a.json", b"old")
    racing = mirror()
    racing.pull()
    (racing.folder / "a.json").write_bytes(b"measured again")
    listing = mirror()
    listing.pull()
    assert (racing.folder / "a.json").read_bytes() == b"measured again"
    listing.push()
    racing.push()
    assert bucket.objects["p/a.json"][0] == b"measured again"


def test_a_changed_file_survives_that_somebody_deletes_its_object(bucket, mirror):
    bucket.put("p/a.json", b"old")
    bucket.put("p/b.json", b"old")
    first = mirror()
    first.pull()
    (first.folder / "a.json").write_bytes(b"measured again")
    bucket.objects.clear()
    second = mirror()
    second.pull()
    assert not (second.folder / "b.json").exists()
    assert second.push() == ["a.json"]


def test_a_pull_that_was_interrupted_leaves_copies_that_are_never_uploaded(bucket, mirror):
    bucket.put("p/a.json", b"first")
    bucket.put("p/b.json", b"second")
    bucket.cut = "p/b.json"
    with pytest.raises(StoreFailed):
        mirror().pull()
    bucket.put("p/a.json", b"newer")
    bucket.cut = ""
    again = mirror()
    again.pull()
    assert (again.folder / "a.json").read_bytes() == b"newer"
    assert again.push() == []


def test_an_object_that_changed_is_copied_again_and_nothing_is_written(bucket, mirror):
    bucket.put("p/a.json", b"old")
    mirror().pull()
    bucket.put("p/a.json", b"of another machine")
    here = mirror()
    here.pull()
    assert (here.folder / "a.json").read_bytes() == b"of another machine"
    assert here.push() == []
    assert bucket.written == []


@pytest.mark.parametrize("tags", ['{"a.json": "tag"}', "[[", "[]", '{"a.json": [1]}'])
def test_tags_of_an_earlier_version_or_damaged_ones_never_make_an_old_copy_an_upload(bucket, mirror, tags):
    bucket.put("p/a.json", b"old")
    here = mirror()
    here.pull()
    bucket.put("p/a.json", b"newer")
    (here.folder / TAGS).write_text(tags)
    here.pull()
    assert (here.folder / "a.json").read_bytes() == b"newer"
    assert here.push() == []


@pytest.mark.parametrize("tags", ["[[", '{"a.json": [1]}', '{"a.json": {"tag": "of a later version"}}'])
def test_a_record_that_waits_for_its_upload_survives_damaged_tags(bucket, mirror, tags):
    bucket.put("p/a.json", b"old")
    here = mirror()
    here.pull()
    (here.folder / "b.json").write_bytes(b"measured here")
    (here.folder / TAGS).write_text(tags)
    here.pull()
    assert here.push() == ["b.json"]
    assert bucket.objects["p/b.json"][0] == b"measured here"


def test_a_file_that_changes_while_others_are_copied_is_uploaded(bucket, mirror):
    bucket.put("p/a.json", b"old")
    here = mirror()
    here.pull()
    bucket.put("p/b.json", b"large")
    read = bucket.read

    def slow(item, start, stop):
        (here.folder / "a.json").write_bytes(b"measured again")
        return read(item, start, stop)

    bucket.read = slow
    here.pull()
    assert here.push() == ["a.json"]
    assert bucket.objects["p/a.json"][0] == b"measured again"


def test_an_object_may_be_replaced_by_a_folder_of_its_name(bucket, mirror):
    bucket.put("p/a", b"a file")
    mirror().pull()
    del bucket.objects["p/a"]
    bucket.put("p/a/b.json", b"in a folder")
    here = mirror()
    here.pull()
    assert (here.folder / "a" / "b.json").read_bytes() == b"in a folder"
    assert here.push() == []


def test_objects_that_stand_for_folders_are_left_out(bucket, mirror):
    bucket.objects |= {
        "p": (b"", "t"),
        "p/race": (b"", "t"),
        "p/race/a.json": (b"{}", "t"),
        "p/.tags.json": (b"x", "t"),
    }
    here = mirror()
    here.pull()
    assert sorted(path.name for path in here.folder.rglob("*") if not path.name.startswith(".")) == ["a.json", "race"]
    assert "race/a.json" in json.loads((here.folder / TAGS).read_text())
    bucket.put("p/race", b"content")
    with pytest.raises(WrongCommand, match="other keys use it as a folder"):
        here.pull()


@pytest.mark.parametrize("key", ["p/../../out.json", "p/a/../../../out", "p//etc/out", "p/a/./b", "p/a\0b"])
def test_a_key_that_is_no_path_in_the_folder_is_refused(bucket, mirror, tmp_path, key):
    bucket.put(key, b"harm")
    with pytest.raises(WrongCommand, match="its key is no path of a file"):
        mirror().pull()
    assert not list(tmp_path.rglob("*out*"))


def _hold(folder, ready, end):
    import fcntl

    with open(folder / mirrors.LOCK, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()
        end.wait(20)


def test_two_processes_do_not_copy_at_once(bucket, mirror):
    here = mirror()
    here.pull()
    context = multiprocessing.get_context("fork")
    ready, end = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(here.folder, ready, end))
    other.start()
    assert ready.wait(10)
    pulling = context.Process(target=mirror().pull)
    pulling.start()
    pulling.join(0.5)
    waited = pulling.is_alive()
    end.set()
    pulling.join(10)
    other.join(10)
    assert waited
    assert pulling.exitcode == 0

"""Shards in a real S3 server: listed by pages, read by blocks, through faults, and refused with clear messages."""

import hashlib
import threading
import time

import pytest
import torch

from paceline.errors import StoreFailed, WrongCommand
from paceline.types import View, Workload
from paceline.workload.feed import Feed
from paceline.workload.objects import bucket as bucket_module
from paceline.workload.objects.address import parse
from paceline.workload.objects.blocks import BLOCK
from paceline.workload.objects.bucket import Bucket
from paceline.workload.objects.serve import Server
from paceline.workload.sources import MENU
from paceline.workload.tfrecord.example import encode
from paceline.workload.tfrecord.frames import write
from paceline.workload.tfrecord.pack import pack, verify

pytestmark = pytest.mark.multi
NO_WORKLOAD = Workload(None, None, None)
STRANGE = "date=2024/a b+c%20d ü日"


class Rows:
    """Samples of `nbytes` random bytes and a label."""

    def __init__(self, count, nbytes):
        self.count, self.nbytes = count, nbytes

    def __len__(self):
        return self.count

    def __call__(self, ids):
        rows = [torch.randint(0, 256, (self.nbytes,), generator=torch.Generator().manual_seed(k)) for k in ids.tolist()]
        return torch.stack(rows).to(torch.uint8), ids % 10


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Start servers, and point this process at each."""
    started = []

    def serve(folder, **settings):
        server = Server(folder, **settings)
        started.append(server)
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return server

    yield serve
    for server in started:
        server.close()


def packed(folder, count=60, nbytes=1000, shards=5):
    pack(Rows(count, nbytes), None, folder, shards, lambda done, number: None)
    return folder


def digest(source, steps=None):
    """Read an epoch as two workers do; return a digest of everything in it."""
    order, seen = source.order(8, 3), []
    for rank in range(2):
        feed = Feed(source.samples_of(NO_WORKLOAD), order, View(rank, 2))
        for _ in range(steps or order.steps):
            rows, labels = next(feed)
            seen += [bytes(row.numpy()) + bytes([label]) for row, label in zip(rows, labels, strict=True)][: feed.count]
        feed.close()
    source._place.blocks.close() if source.counts() else None
    return hashlib.sha256(b"".join(sorted(seen))).hexdigest(), len(seen)


def test_more_than_a_thousand_shards_are_listed_by_pages(tmp_path, served):
    folder = tmp_path / "many" / "p"
    folder.mkdir(parents=True)
    for k in range(1024):
        (folder / f"train-{k:05d}-of-01024").touch()
    server = served(folder.parent)
    bucket = Bucket(parse(f"{server.address}/p"))
    assert [item.name for item in bucket.listing()] == [f"train-{k:05d}-of-01024" for k in range(1024)]
    assert server.proxy.requests["/many"] >= 2
    assert bucket.counts.retries == 0


def test_keys_with_space_plus_percent_and_unicode_are_read(tmp_path, served):
    folder = packed(tmp_path / "odd" / STRANGE)
    server = served(tmp_path / "odd")
    source = MENU.make(f"tfrecord('{server.address}/{STRANGE}')")
    assert MENU.make(str(source)) == source
    assert digest(source) == digest(MENU.make(f"tfrecord('{folder}')"))


def test_a_third_of_requests_fails_and_the_epoch_is_the_same(tmp_path, served):
    folder = packed(tmp_path / "bucket", shards=30)
    server = served(tmp_path / "bucket", faults=0.3, seed=5)
    source = MENU.make(f"tfrecord({server.address})")
    assert digest(source) == (digest(MENU.make(f"tfrecord({folder})"))[0], 60)
    counts = source.counts()
    assert server.proxy.failed.total() == counts.retries > 5
    assert sum(counts.reasons.values()) == counts.retries
    assert counts.requests == server.proxy.requests.total()
    assert set(server.proxy.failed) == {"503", "reset", "short"}


def test_without_retries_the_same_faults_end_the_epoch(tmp_path, served, monkeypatch):
    monkeypatch.setattr(bucket_module, "ATTEMPTS", 1)
    packed(tmp_path / "bucket", shards=30)
    server = served(tmp_path / "bucket", faults=0.3, seed=5)
    with pytest.raises(StoreFailed, match="1 requests in a row failed"):
        digest(MENU.make(f"tfrecord({server.address})"))


def test_nothing_fails_any_more_when_the_faults_stop(tmp_path, served):
    packed(tmp_path / "bucket", shards=20)
    server = served(tmp_path / "bucket", faults=0.5, seed=1)
    source = MENU.make(f"tfrecord({server.address})")
    digest(source)
    server.proxy.faults = 0.0
    before, began = source.counts().retries, server.proxy.requests.total()
    digest(source)
    assert before > 0
    assert source.counts().retries == before
    assert server.proxy.requests.total() - began <= 3 * 20  # two epochs, because a feed makes batches ahead


def test_a_shard_takes_one_request_for_each_block(tmp_path, served):
    packed(tmp_path / "bucket", count=200, nbytes=200 << 10, shards=4)
    server = served(tmp_path / "bucket")
    source = MENU.make(f"tfrecord({server.address}, lanes=4, window=32)")
    order, samples = source.order(8, 3), source.samples_of(NO_WORKLOAD)
    for step in range(order.steps):  # a feed would go on with the next epoch
        samples.expect(order.ids(0, min(step + 4, order.steps - 1)))
        samples(order.ids(0, step))
    source._place.blocks.close()
    for shard in source._train.shards:
        assert 1 <= server.proxy.requests[f"/bucket/{shard.path.key}"] <= shard.size / BLOCK + 2
    assert source.counts().again == 0
    assert source.counts().nbytes > sum(shard.size for shard in source._train.shards)  # and the index


def test_shards_of_others_are_scanned_once_and_again_only_if_their_tag_changes(tmp_path, served):
    folder = tmp_path / "bucket"
    folder.mkdir()
    path = folder / "train-00000-of-00001"

    def fill(count):
        with open(path, "wb") as stream:
            write(stream, [encode({"a": [k]}) for k in range(count)])

    fill(6)
    server = served(folder, etags=True)
    key = f"/bucket/{path.name}"
    assert len(MENU.make(f"tfrecord({server.address})").samples_of(NO_WORKLOAD)) == 6
    assert server.proxy.requests[key] == 1
    assert len(MENU.make(f"tfrecord({server.address})").samples_of(NO_WORKLOAD)) == 6
    assert server.proxy.requests[key] == 1
    fill(7)
    limit = time.monotonic() + 60  # rclone keeps listings for some seconds
    while len(MENU.make(f"tfrecord({server.address})").samples_of(NO_WORKLOAD)) != 7:
        assert time.monotonic() < limit
        time.sleep(0.2)
    assert server.proxy.requests[key] == 2
    assert not list((tmp_path / "cache").rglob("*.lock"))


def test_an_object_that_changes_while_it_is_read_is_noticed(tmp_path, served):
    folder = packed(tmp_path / "bucket", shards=1)
    server = served(folder, etags=True)
    source = MENU.make(f"tfrecord({server.address})")
    samples = source.samples_of(NO_WORKLOAD)
    path = folder / "train-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[50] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreFailed, match=r"train-00000-of-00001: its content changed while it was read"):
        samples(torch.tensor([0]))
    source._place.blocks.close()


def test_verify_checks_objects_and_names_the_damaged_one(tmp_path, served):
    folder = packed(tmp_path / "bucket")
    path = folder / "train-00001-of-00005"
    content = bytearray(path.read_bytes())
    content[40] ^= 4
    path.write_bytes(content)
    verdict = verify(served(folder).address)
    assert (verdict.files, verdict.records) == (5, 59)
    assert str(verdict.damages[0]).startswith("s3://bucket/train-00001-of-00005: record 0 at offset 0")


def test_wrong_keys_fail_at_once_and_no_secret_is_repeated(tmp_path, served, monkeypatch):
    server = served(packed(tmp_path / "bucket"))
    source = MENU.make(f"tfrecord({server.address})")
    samples = source.samples_of(NO_WORKLOAD)
    secret = "not-the-secret-of-this-server"
    wrong = Bucket(parse(server.address), environ={**server.environment, "AWS_SECRET_ACCESS_KEY": secret})
    source._place.blocks.bucket = wrong
    with pytest.raises(StoreFailed, match=r"s3://bucket/train-0000.-of-00005: .* \(403 Sig.*AWS_SECRET") as caught:
        samples(torch.tensor([0]))
    assert wrong.counts.retries == 0
    assert not any(word in str(caught.value) for word in (secret, *list(server.environment.values())[1:3]))
    source._place.blocks.close()


def test_a_missing_bucket_prefix_or_object_is_named(tmp_path, served):
    server = served(packed(tmp_path / "bucket"))
    with pytest.raises(WrongCommand, match=r"http://127.0.0.1:\d+ has no bucket buckett"):
        MENU.make("tfrecord(s3://buckett/x)").fit()
    with pytest.raises(WrongCommand, match="there are no objects below it"):
        MENU.make(f"tfrecord({server.address}/nothing)").fit()


def test_an_endpoint_that_nobody_answers_is_named_after_a_few_tries(monkeypatch):
    pauses = []
    environ = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    bucket = Bucket(parse("s3://b/x"), environ=environ, sleep=pauses.append)
    with pytest.raises(StoreFailed, match=r"s3://b/x: http://127.0.0.1:9 cannot be reached. try: look at AWS_END"):
        bucket.listing()
    assert len(pauses) == bucket.counts.retries == 3


def test_a_server_ends_with_its_process_and_needs_a_folder_and_a_free_port(tmp_path, served):
    with pytest.raises(WrongCommand, match="no such folder"):
        Server(tmp_path / "nothing")
    server = served(packed(tmp_path / "Not_a bucket name"))
    assert server.address == "s3://data"
    assert digest(MENU.make(f"tfrecord({server.address})"))[1] == 60
    with pytest.raises(Exception, match=f"--port {server.proxy.port}: Address already in use. try: another port"):
        Server(tmp_path, server.proxy.port)
    assert threading.active_count() < 20

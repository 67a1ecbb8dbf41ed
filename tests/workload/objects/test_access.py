"""Addresses, endpoints and credentials: what is accepted, and messages without secrets."""

import pytest

from paceline.errors import WrongCommand
from paceline.workload.objects.access import credentials_of, endpoint_of
from paceline.workload.objects.address import Address, Item, parse
from paceline.workload.sources import MENU

SECRET = "wJalrXUtnFEMIK7MDENG"
KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": SECRET}


@pytest.mark.parametrize("prefix", ["", "a", "date=2024/x y", "a+b%20c", "äöü/日本"])
def test_an_address_is_taken_as_it_is_written(prefix):
    address = parse(f"s3://bucket/{prefix}".rstrip("/"))
    assert address == Address("bucket", prefix)
    assert parse(str(address)) == address
    assert parse(f"{address}/") == address


@pytest.mark.parametrize("text", ["s3://", "s3:///x", "s3://b/a//b", "s3://b/../c", "/b/c"])
def test_an_address_without_bucket_or_with_empty_parts_is_refused(text):
    with pytest.raises(WrongCommand, match=r"s3://BUCKET/PREFIX"):
        parse(text)


def test_an_item_prints_as_an_address_and_has_a_name():
    item = Item("b", "x/train-00000-of-00001", 3, "tag")
    assert (str(item), item.name) == ("s3://b/x/train-00000-of-00001", "train-00000-of-00001")


@pytest.mark.parametrize("word", ["idx", "cifar10", "imagefolder"])
def test_sources_that_read_folders_only_refuse_an_address(word):
    with pytest.raises(WrongCommand, match=r"folders of this machine.*tfrecord\(s3://b/x\)"):
        MENU.make(f"{word}(s3://b/x)")


def test_the_endpoint_comes_from_the_option_or_the_environment():
    assert endpoint_of({}) == ""
    environ = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert endpoint_of(environ) == "http://127.0.0.1:1"
    assert endpoint_of({**environ, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:2"}) == "http://127.0.0.1:2"
    assert endpoint_of(environ, "https://127.0.0.1:3") == "https://127.0.0.1:3"


@pytest.mark.parametrize("text", ["127.0.0.1:9000", "ftp://host", "http://"])
def test_an_endpoint_that_is_no_address_is_refused(text):
    with pytest.raises(WrongCommand, match="it is no address"):
        endpoint_of({"AWS_ENDPOINT_URL": text})


def test_a_password_in_the_endpoint_is_refused_and_not_repeated():
    with pytest.raises(WrongCommand, match="it holds a password") as caught:
        endpoint_of({}, f"http://ana:{SECRET}@host")
    assert SECRET not in str(caught.value)


def test_credentials_come_from_the_environment_first_and_else_from_the_file(tmp_path):
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = B\n[two]\naws_access_key_id = C\n"
        "aws_secret_access_key = D\naws_session_token = E\n"
    )
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(path)}
    assert credentials_of(environ, "b") == {"access_key_id": "A", "secret_access_key": "B"}
    two = credentials_of({**environ, "AWS_PROFILE": "two"}, "b")
    assert two == {"access_key_id": "C", "secret_access_key": "D", "session_token": "E"}
    assert credentials_of({**environ, **KEYS}, "b") == {"access_key_id": "AKID", "secret_access_key": SECRET}
    assert credentials_of({"AWS_SKIP_SIGNATURE": "true"}, "b") == {"skip_signature": True}
    assert credentials_of({"AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}, "b") == {}


def test_missing_credentials_are_named_and_nothing_is_asked_for_them(tmp_path):
    with pytest.raises(WrongCommand, match=r"s3://b: there are no credentials.*export AWS_ACCESS_KEY_ID"):
        credentials_of({"HOME": str(tmp_path)}, "b")
    with pytest.raises(WrongCommand, match="none for two"):
        credentials_of({"HOME": str(tmp_path), "AWS_PROFILE": "two"}, "b")


def test_a_damaged_file_of_credentials_is_refused_without_its_content(tmp_path):
    path = tmp_path / "credentials"
    path.write_text(f"aws_secret_access_key {SECRET}\n")
    with pytest.raises(WrongCommand, match="it is no file of credentials") as caught:
        credentials_of({"AWS_SHARED_CREDENTIALS_FILE": str(path)}, "b")
    assert SECRET not in str(caught.value)

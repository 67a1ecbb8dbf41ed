import json

import pytest

from paceline.bench.redact import redact, redacted, secrets_of
from paceline.jobs.measure import failed_record
from paceline.record import read, write
from paceline.run import Run

SECRET = "wJalrXUtnFEMI/K7MDENG"


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("https://ana:hunter2@host/x", "https://***@host/x"),
        ("https://ghp_0123456789abcdef@github.com/a/b", "https://***@github.com/a/b"),
        ("s3://bucket/x?token=abc123&part=1", "s3://bucket/x?token=***&part=1"),
        ("https://h/x?X-Amz-Signature=deadbeef&X-Amz-Date=1", "https://h/x?X-Amz-Signature=***&X-Amz-Date=1"),
        ("AWS_SECRET_ACCESS_KEY=abc/def+1 next", "AWS_SECRET_ACCESS_KEY=*** next"),
        ('{"password": "hunter2"}', '{"password": "***"}'),
        ("Authorization: Bearer eyJhbGciOi.abc", "Authorization: *** ***"),
        ("curl -H 'Bearer abcdefgh'", "curl -H 'Bearer ***'"),
        ("key AKIAABCDEFGHIJKLMNOP used", "key *** used"),
        ("login hf_abcdefghijklmnop ok", "login *** ok"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "***"),
    ],
)
def test_secrets_are_known_by_their_form(text, instead):
    assert redact(text) == instead


@pytest.mark.parametrize(
    "text",
    [
        "paceline run -np 2 --model resnet50 --source 'fake(cpu)'",
        "https://example.org/a?part=1",
        "bert_base(sequence_length=64)",
        "rank 2 (host b, pid 4711) stopped answering in all_sum of chunk 7",
        "64 tokens per second",
        "user@host: no such file",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


def test_values_of_variables_named_like_secrets_are_secrets():
    environ = {"AWS_SECRET_ACCESS_KEY": SECRET, "HF_TOKEN": "abcdef1", "TOKENIZERS_PARALLELISM": "false-ish"}
    environ |= {"API_TOKEN_FILE": "/run/secrets/x", "MY_PASSWORD": "yes", "HOME": "/root/home"}
    found = secrets_of(environ)
    assert SECRET in found
    assert "wJalrXUtnFEMI%2FK7MDENG" in found
    assert "abcdef1" in found
    assert not {"false-ish", "/run/secrets/x", "yes", "/root/home"} & set(found)


def test_fields_named_like_secrets_are_hidden_inside_values():
    assert redacted({"a": [{"api_key": "xyz", "n": 3}], "b": None}) == {"a": [{"api_key": "***", "n": 3}], "b": None}


def test_no_planted_secret_reaches_a_record(tmp_path, monkeypatch):
    """In a text field of the run, in what failed, in the experiment, in a line of a log."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    run = Run(model="mlp", source="shards(s3://me:t0ps3cret@bucket/data?token=t0ps3cret)")
    record = failed_record(run, f"rank 0: cannot read with key {SECRET} from https://me:t0ps3cret@host")
    told = {"storage": "https://me:t0ps3cret@host", "store": {"secret_key": "t0ps3cret"}}
    record = record.model_copy(update={"logs": [f"AWS_SECRET_ACCESS_KEY={SECRET}"], "experiment": told})
    path = tmp_path / "r.json"
    write(path, record.to_json())
    text = path.read_text()
    assert "t0ps3cret" not in text
    assert SECRET not in text
    assert json.dumps(SECRET)[1:-1] not in text
    assert read(path).run.source == "shards(s3://***@bucket/data?token=***)"


def test_without_redaction_the_planted_secrets_would_be_there():
    run = Run(model="mlp", source="s3://me:t0ps3cret@bucket")
    assert "t0ps3cret" in failed_record(run, "").model_dump_json()

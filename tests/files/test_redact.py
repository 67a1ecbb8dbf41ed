import json
import shlex

import pytest

from paceline.files.redact import redact, redacted, secrets_of
from paceline.measure.combining import failed_record
from paceline.measure.record.record import read, write
from paceline.run.run import Run
from tests.report.samples import record

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
        ("Authorization: Bearer eyJhbGciOi.abc", "Authorization: ***"),
        ("curl -H 'Authorization: token abcdef123' host", "curl -H 'Authorization: ***' host"),
        ("curl -H 'Bearer abcdefgh'", "curl -H 'Bearer ***'"),
        ("key AKIAABCDEFGHIJKLMNOP used", "key *** used"),
        ("login hf_abcdefghijklmnop ok", "login *** ok"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "***"),
        ("https://ana:p@ss@host", "https://***@host"),
        ("https://ana:p@ss@host/x", "https://***@host/x"),
        ("s3://ID:ab/cd@bucket/x", "s3://***@bucket/x"),
        ("git+https://me:tok@github.com/a/b@v1", "git+https://***@github.com/a/b@v1"),
        ("redis://:pw@host/0", "redis://***@host/0"),
        ("STRIPE_KEY=abc OPENAI_KEY=abc, MYSQL_PWD=abc", "STRIPE_KEY=*** OPENAI_KEY=*** MYSQL_PWD=***"),
        ("export MY_KEY='a b' DB_PASS=abc", "export MY_KEY='***' DB_PASS=***"),
        ("Server=h;Uid=ana;Pwd=abc;x=1", "Server=h;Uid=ana;Pwd=***;x=1"),
        ('{"password": "a b, c"}', '{"password": "***"}'),
        ("f(token=abc, x=1)", "f(token=***, x=1)"),
        ("python t.py --token=S1 --password S2 -v", "python t.py --token=*** --password *** -v"),
        ("t.py --password S2, 2 workers", "t.py --password ***, 2 workers"),
        ("t.py --api-key abc --my-secret-word 'a b' x", "t.py --api-key *** --my-secret-word *** x"),
        ("t.py --token=a,b;c&d x", "t.py --token=*** x"),
        ("t.py '--token=a b' x", "t.py '--token=***' x"),
        (shlex.join(["t.py", "--password", "it's it", "x"]), "t.py --password *** x"),
        ("['t.py', '--password', 'S2', '--token=S1']", "['t.py', '--password', '***', '--token=***']"),
        ("t.py --password -x9! y", "t.py --password *** y"),
        ("t.py --pass abc -v", "t.py --pass *** -v"),
        ("AccountName=x;AccountKey=ab+/cd==;EndpointSuffix=y", "AccountName=x;AccountKey=***;EndpointSuffix=y"),
        ("AZURE_STORAGE_CONNECTION_STRING=AccountName=x;K=y z", "AZURE_STORAGE_CONNECTION_STRING=*** z"),
    ],
)
def test_secrets_are_known_by_their_form(text, instead):
    assert redact(text) == instead
    assert redact(instead) == instead


@pytest.mark.parametrize(
    "text",
    [
        "paceline run -np 2 --model resnet50 --source 'fake(cpu)'",
        "https://example.org/a?part=1",
        "bert_base(sequence_length=64)",
        "rank 2 (host b, pid 4711) stopped answering in all_sum of chunk 7",
        "64 tokens per second",
        "user@host: no such file",
        "https://example.org:8080/a@v1",
        "https://example.org/@ana",
        "http://[::1]:80/a@b",
        "t.py --tokenizer bert --max-tokens 512 --tokens 512 --token-file /x --sort-key name",
        "t.py --use-token --model x",
        "t.py --token -- x",
        "t.py --pass-through 3 --passes 2 --bypass x, first pass: 3",
        "pad_token_id=0, tokens_per_second=3, tokens: 64, forward_pass=2",
        "PWD=/home/ana OLDPWD=/tmp pwd: /home",
        "missing_keys=['a'], keys: 3, key=lambda",
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


def test_any_value_in_a_field_named_like_a_secret_is_hidden():
    told = {"password": 1234567, "token": ["a", 1], "credentials": {"user": "ana"}, "store": {"STRIPE_KEY": 1.5}}
    hidden = {"password": "***", "token": "***", "credentials": "***", "store": {"STRIPE_KEY": "***"}}
    assert redacted(told) == hidden
    assert redacted(hidden) == hidden


def test_figures_that_only_sound_like_secrets_stay():
    told = {"tokens": 64, "tokens per second": 3.5, "max_tokens": [1, 2], "keys": [1], "use_token": True, "token": None}
    told |= {"PWD": "/home/ana", "pad_token_id": 0, "sort_key": "name", "password": "", "secrets": {}}
    assert redacted(told) == told


def test_no_figure_of_a_record_is_hidden():
    values = record().model_dump(mode="json")
    assert redacted(values) == values


def test_in_words_of_a_command_a_flag_tells_what_the_next_word_is():
    words = ["t.py", "--password", "a b", "--token=a b", "MY_KEY=a b", "--token", "-v", "--tokens", "512", "x=1"]
    hidden = ["t.py", "--password", "***", "--token=***", "MY_KEY=***", "--token", "-v", "--tokens", "512", "x=1"]
    assert redacted(words) == hidden
    assert redacted({"script": ["--pin-secret", 5, "--model", "x"]}) == {
        "script": ["--pin-secret", "***", "--model", "x"]
    }


def test_no_planted_secret_reaches_a_record(tmp_path, monkeypatch):
    """In a text field of the run, in what failed, in the experiment, in a line of a log."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    run = Run(model="mlp", source="shards(s3://me:t0ps3cret@bucket/data?token=t0ps3cret)")
    kept = failed_record(run, f"rank 0: cannot read with key {SECRET} from https://me:t0ps3cret@host")
    told = {"storage": "https://me:t0ps3cret@host", "store": {"secret_key": "t0ps3cret"}}
    kept = kept.model_copy(update={"logs": [f"AWS_SECRET_ACCESS_KEY={SECRET}"], "experiment": told})
    path = tmp_path / "r.json"
    write(path, kept.to_json())
    text = path.read_text()
    assert "t0ps3cret" not in text
    assert SECRET not in text
    assert json.dumps(SECRET)[1:-1] not in text
    assert read(path).run.source == "shards(s3://***@bucket/data?token=***)"


def test_without_redaction_the_planted_secrets_would_be_there():
    run = Run(model="mlp", source="s3://me:t0ps3cret@bucket")
    assert "t0ps3cret" in failed_record(run, "").model_dump_json()

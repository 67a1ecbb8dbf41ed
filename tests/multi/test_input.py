"""Training from outside: an object store with faults, a producer on a pipe, and the exit code of a missed target."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workload.sources.idxfiles import write_folder

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def paceline(*words, **environ):
    command = [sys.executable, "-m", "paceline", *map(str, words)]
    environ = {**os.environ, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=170, cwd=ROOT, env=environ)


class Background:
    """A command that runs until it is killed; `environ` are the lines that it has printed."""

    def __init__(self, *words, **environ):
        command = [sys.executable, "-m", "paceline", *map(str, words)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **environ}
        )

    def __enter__(self):
        self.environ = {}
        for line in self.process.stdout:
            if line.startswith("#"):
                break
            name, _, value = line.removeprefix("export ").strip().partition("=")
            self.environ[name] = value
        self.line = line
        return self

    def __exit__(self, *problem):
        self.process.kill()  # the server that it has started must end by itself
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def packed(tmp_path):
    folder = tmp_path / "packed"
    made = paceline("data", "pack", f"idx({write_folder(tmp_path / 'idx', train=96)})", folder, "--shards", 6)
    assert made.returncode == 0, made.stderr
    return folder


def test_training_from_a_store_with_faults_counts_retries_and_keeps_the_result(packed, tmp_path):
    words = ("run", "-np", 2, "--model", "small_cnn", "--epochs", 2, "--global-batch", 16)
    with Background("data", "serve", packed, "--faults", "0.3", "--seed", "4") as server:
        # the record goes to the store, too, and another machine (with another cache) lists it
        place = ("--runs", "s3://packed/a b/runs")
        source = ("--source", "tfrecord(s3://packed)", "--json", tmp_path / "a.json")
        stored = paceline(*words, *source, *place, XDG_CACHE_HOME=str(tmp_path / "here"), **server.environ)
        there = {"XDG_CACHE_HOME": str(tmp_path / "there"), **server.environ}
        kept = {path: path.stat().st_mtime_ns for path in (packed / "a b" / "runs").iterdir()}
        listed = paceline("list", *place, **there)
    local = paceline(*words, "--source", f"tfrecord({packed})", "--json", tmp_path / "b.json", "--runs", tmp_path / "r")
    assert (stored.returncode, local.returncode) == (0, 0), stored.stderr + local.stderr
    a, b = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert a["loss"] == b["loss"]
    assert f"{a['id']}.json" in {path.name for path in kept}
    assert listed.returncode == 0, listed.stderr
    assert "small_cnn" in listed.stdout
    assert {path: path.stat().st_mtime_ns for path in (packed / "a b" / "runs").iterdir()} == kept
    assert a["input"]["retries"] > 0
    assert f"object store: {a['input']['retries']} of {a['input']['requests']} requests" in stored.stdout
    assert b["input"] == {}
    assert not any(server.environ["AWS_SECRET_ACCESS_KEY"] in text for text in (json.dumps(a), stored.stdout))


def test_two_workers_train_on_what_a_producer_sends(tmp_path):
    run = ("run", "-np", 2, "--model", "small_cnn", "--batch-size", 8, "--steps", 3, "--warmup", 1, "--repeats", 2)
    with Background("data", "produce", "fake(cpu)", "tcp://127.0.0.1:*", "--batch-size", 8) as producer:
        source = producer.line.split('"')[1]
        done = paceline(*run, "--source", source, "--runs", tmp_path, **producer.environ)
        assert done.returncode == 0, done.stderr
        assert producer.environ["PACELINE_DATA_TOKEN"] not in done.stdout
        wrong = paceline(*run, "--source", source, "--runs", tmp_path, PACELINE_DATA_TOKEN="of-somebody-else")
        assert wrong.returncode == 1
        assert "a message with another seal than that of PACELINE_DATA_TOKEN" in wrong.stderr


def test_a_target_that_is_not_reached_ends_with_exit_code_1(packed, tmp_path):
    words = ("run", "--model", "small_cnn", "--epochs", 1, "--global-batch", 16, "--source", f"tfrecord({packed})")
    missed = paceline(*words, "--target", "1", "--runs", tmp_path)
    assert missed.returncode == 1
    assert "target 1 was not reached: the last accuracy is" in missed.stderr
    assert "Total img/sec" in missed.stdout


def test_bench_measures_a_source_alone_and_its_stall_in_training(packed, tmp_path):
    words = ("data", "bench", f"tfrecord({packed})", "--model", "small_cnn", "--batch-size", 8, "--seconds", 0.5)
    done = paceline(*words, "--json", tmp_path / "bench.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "bench.json").read_text())
    rate, moved = result["alone"]["samples_per_second"]["centre"], result["alone"]["bytes_per_second"]
    assert moved == pytest.approx(rate * (4 * 4 * 4 + 8))  # a gray image of 4 x 4 floats, and its label
    assert 0 <= result["training"]["share"] < 1
    assert f"{100 * result['training']['share']:.1f} % of a step" in done.stdout
    wrong = paceline("data", "bench", f"tfrecord({tmp_path}/nothing)")
    assert wrong.returncode == 2
    assert "there is no such folder" in wrong.stderr

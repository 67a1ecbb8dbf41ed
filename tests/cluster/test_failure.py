import json

from paceline.cluster.failure import MOST_CALLS, Failure, calls_noted, failed, failure_of, in_order
from paceline.files.redact import secrets_of


def leave(folder, rank, **told):
    (folder / f"rank-{rank}.failed.json").write_text(json.dumps({"rank": rank, **told}))


def test_a_signal_is_named(tmp_path):
    failure = failure_of(2, 4711, -9, seconds=1.0, folder=tmp_path)
    text = str(failed(failure, tmp_path))
    assert text.startswith("rank 2 (pid 4711) was killed by SIGKILL: the kernel does that when memory runs out")
    assert text.endswith(f"try: read {tmp_path}/rank-2.log")


def test_a_real_time_signal_has_a_number(tmp_path):
    assert failure_of(0, 1, -40, seconds=0, folder=tmp_path).signal == "signal 40"


def test_the_workers_own_words_are_the_reason(tmp_path):
    leave(tmp_path, 1, step=12, error="ValueError: a bad batch", traceback="Traceback ...", exit_code=1)
    failure = failure_of(1, 4711, 1, seconds=1.0, folder=tmp_path)
    assert failure.traceback == "Traceback ..."
    assert str(failed(failure, tmp_path)).startswith(
        "rank 1 (pid 4711) ended with exit code 1 at step 12: ValueError: a bad batch. try: read "
    )


def test_the_last_line_on_stderr_stands_in_for_a_missing_file(tmp_path):
    failure = failure_of(1, 1, 1, seconds=0, folder=tmp_path, last_words="KeyError: 'x'")
    assert failure.error == "KeyError: 'x'"


def test_a_remedy_of_the_worker_is_not_followed_by_ours(tmp_path):
    leave(tmp_path, 0, error="topk needs x. try: topk(x=1)", exit_code=2)
    error = failed(failure_of(0, 1, 2, seconds=0, folder=tmp_path), tmp_path)
    assert str(error).count("try:") == 1
    assert error.exit_code == 2


def test_half_a_failure_file_is_no_failure_file(tmp_path):
    (tmp_path / "rank-0.failed.json").write_text('{"error": "hal')
    assert failure_of(0, 1, 3, seconds=0, folder=tmp_path).error == ""
    (tmp_path / "rank-0.failed.json").write_text('["not", "ours"]')
    assert failure_of(0, 1, 3, seconds=0, folder=tmp_path).error == ""


def test_only_a_wrong_command_gives_exit_code_2(tmp_path):
    codes = {
        status: failed(failure_of(0, 1, status, seconds=0, folder=tmp_path), tmp_path).exit_code
        for status in (1, 2, 3, -2)
    }
    assert codes == {1: 1, 2: 2, 3: 1, -2: 1}


def test_the_cause_stands_before_its_consequences():
    lost = Failure(0, 10, 1.0, exit_code=1, consequence=True)
    own = Failure(1, 11, 1.1, exit_code=1)
    late = Failure(2, 12, 1.2, exit_code=1)
    killed = Failure(3, 13, 1.3, signal="SIGSEGV")
    assert in_order([lost, late, own, killed]) == [killed, own, late, lost]


def test_a_lost_peer_is_known_by_kind_error_or_last_words(tmp_path):
    leave(tmp_path, 0, kind="PeerLost", error="rank 2 stopped answering")
    leave(tmp_path, 1, error="PeerLost: rank 2 stopped answering")
    assert failure_of(0, 1, 1, seconds=0, folder=tmp_path).consequence
    assert failure_of(1, 1, 1, seconds=0, folder=tmp_path).consequence
    assert failure_of(2, 1, 1, seconds=0, folder=tmp_path, last_words="paceline.errors.PeerLost: x").consequence
    assert not failure_of(3, 1, 1, seconds=0, folder=tmp_path, last_words="ValueError").consequence


def test_secrets_are_taken_out_of_a_workers_words(tmp_path):
    secrets = secrets_of({"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "HOME": "/root"})
    leave(tmp_path, 0, error="OSError: wJalrXUtnFEMI was refused", traceback="... wJalrXUtnFEMI ...", exit_code=1)
    failure = failure_of(0, 1, 1, seconds=0, folder=tmp_path, secrets=secrets)
    assert (failure.error, failure.traceback) == ("OSError: *** was refused", "... *** ...")
    words = "OSError: https://ana:hunter2@host/x and wJalrXUtnFEMI"
    failure = failure_of(1, 1, 1, seconds=0, folder=tmp_path, last_words=words, secrets=secrets)
    assert str(failed(failure, tmp_path)).startswith(
        "rank 1 (pid 1) ended with exit code 1: OSError: https://***@host/x and ***. try: "
    )


def test_the_calls_that_ranks_noted_are_named(tmp_path):
    (tmp_path / "rank-10.call").write_text("barrier")
    (tmp_path / "rank-0.call").write_text("allreduce of 4 float32\nrest of a longer text before")
    (tmp_path / "rank-1.call").write_bytes(b"allgather of 6 float64\0\0\0")
    (tmp_path / "rank-2.call").write_text("")
    (tmp_path / "rank-x.call").write_text("of nobody")
    named = [
        "last call of rank 0: allreduce of 4 float32",
        "last call of rank 1: allgather of 6 float64",
        "last call of rank 10: barrier",
    ]
    assert calls_noted(tmp_path) == named
    text = str(failed(failure_of(1, 4711, -6, seconds=0, folder=tmp_path), tmp_path))
    assert text.startswith("rank 1 (pid 4711) was killed by SIGABRT: native code gave up\n  " + "\n  ".join(named))


def test_of_many_noted_calls_some_are_shown(tmp_path):
    for rank in range(MOST_CALLS + 5):
        (tmp_path / f"rank-{rank}.call").write_text("barrier " * 100)
    shown = calls_noted(tmp_path)
    assert len(shown) == MOST_CALLS + 1
    assert shown[-1] == "and 5 ranks more"
    assert max(map(len, shown)) < 400

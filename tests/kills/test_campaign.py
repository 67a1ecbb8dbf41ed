"""A short form of the campaign (`make kills` runs the long one), and that its checks find what they look for."""

import signal
import subprocess
import sys
from itertools import islice
from types import SimpleNamespace

import pytest

from tests.kills import campaign
from tests.kills.scene import Scene, send
from tests.kills.trials import Trial, trials


def problems_of(results):
    assert all(result.hit for result in results)
    return [f"{result.trial}: {problem}\n{result.output}" for result in results for problem in result.problems]


def trial(verb="run", target="worker", kind=signal.SIGKILL, delay=0.3, **settings):
    return Trial(1, verb, target, kind, delay, **settings)


SHORT = [
    trial("run", "worker", signal.SIGKILL, 0.1, rank=1),
    trial("run", "worker", signal.SIGINT, 0.5, rank=0),
    trial("run", "server", signal.SIGTERM, 0.4),
    trial("run", "launcher", signal.SIGKILL, 1.0),
    trial("run", "launcher", signal.SIGINT, 0.2),
    trial("script", "worker", signal.SIGSTOP, 0.4, rank=1, after=signal.SIGKILL, pause=0.2),
    trial("script", "launcher", signal.SIGTERM, 0.9),
    trial("race", "launcher", signal.SIGINT, 1.2),
]


@pytest.mark.multi
@pytest.mark.slow
def test_nothing_is_left_whatever_is_killed():
    assert not problems_of(campaign.carried_out(SHORT))


@pytest.mark.multi
@pytest.mark.slow
@pytest.mark.root
def test_nothing_is_left_of_a_lab_whatever_is_killed():
    hit = [
        trial("lab", "launcher", signal.SIGKILL, 1.2),
        trial("lab", "launcher", signal.SIGTERM, 1.0),
        trial("lab", "worker", signal.SIGKILL, 0.5),
    ]
    assert not problems_of(campaign.carried_out(hit))


def test_a_seed_gives_one_campaign_with_all_kinds_in_it():
    first, again, other = (list(islice(trials(seed, ["run", "race"]), 60)) for seed in (7, 7, 8))
    assert first == again
    assert first != other
    assert len({(one.verb, one.target, one.signal) for one in first}) == 2 * 3 * 4
    assert {one.after for one in first if one.signal == signal.SIGSTOP} == {signal.SIGCONT, signal.SIGKILL}
    assert min(one.delay for one in first) < 0.5
    assert max(one.delay for one in first) > 4.0


@pytest.mark.multi
def test_a_process_that_is_left_is_found_by_its_mark(tmp_path, monkeypatch):
    scene = Scene(tmp_path, ["--version"])
    stray = subprocess.Popen(
        ["sleep", "60"], env={"PACELINE_KILLS": scene._mark}, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        scene.process.wait()
        monkeypatch.setattr(campaign, "GUARD", 0.1)
        assert [f"processes are left: {stray.pid} sleep 60"] == list(campaign._processes(scene, []))
        assert [f"processes are left: {stray.pid} sleep 60"] == list(campaign._processes(scene, [stray.pid]))
    finally:
        scene.end()
        stray.wait()
    assert not send(stray.pid, signal.SIGTERM)


def told(output, folder=None):
    return SimpleNamespace(output=output, temporary=folder, process=SimpleNamespace(pid=0))


def test_a_cause_that_is_not_named_is_a_failure():
    named = "error: rank 1 (pid 5) was killed by SIGKILL: ..."
    hit = trial(rank=1)
    assert not list(campaign._named(hit, told(named), 1))
    assert list(campaign._named(hit, told(named), 0)) == ["exit code 0 instead of 1"]
    assert list(campaign._named(hit, told("error: rank 0 (pid 4) lost a peer"), 1))
    assert list(campaign._named(hit, told("error: rank 1 (pid 5) ended with exit code 1"), 1))
    stopped = trial(target="launcher", kind=signal.SIGINT)
    assert not list(campaign._named(stopped, told("interrupted\n"), 130))
    assert list(campaign._named(stopped, told("Aborted!\n"), 130))


def test_tracebacks_of_ours_are_failures_and_those_of_a_script_are_not():
    ours = 'Traceback (most recent call last):\n  File "/x/paceline/cli/run.py", line 1\nKeyboardInterrupt\n'
    assert list(campaign._own_traceback(trial(), ours))
    assert not list(campaign._own_traceback(trial("script", "worker", signal.SIGINT), ours))
    of_python = ours.replace("paceline/cli/run.py", "paceline/.venv/lib/site.py")
    assert not list(campaign._own_traceback(trial(), of_python))
    interrupted = trial(target="launcher", kind=signal.SIGINT)
    assert not list(campaign._named(interrupted, told(of_python), 1))
    assert list(campaign._named(interrupted, told(ours), 1)) == ["exit code 1 instead of -2 or 130"]


def test_half_a_record_and_an_unnamed_folder_are_failures(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.json").write_text('{"schema": 1, "ha')
    assert [text.partition(":")[0] for text in campaign._damaged(tmp_path / "runs")] == ["a.json is damaged"]
    place = tmp_path / "tmp"
    (place / "paceline-1-2-3-x").mkdir(parents=True)
    assert list(campaign._left_on_disk(trial(), told("", place))) == ["paceline-1-2-3-x is left among temporary files"]
    assert not list(campaign._left_on_disk(trial(), told(f"try: read {place}/paceline-1-2-3-x/rank-0.log", place)))


@pytest.mark.multi
def test_the_campaign_says_what_it_did(capsys, monkeypatch):
    monkeypatch.setattr(campaign, "carry_out", lambda one: campaign.Result(one, hit=True, code=1))
    monkeypatch.setattr(sys, "argv", ["campaign", "--kills", "30", "--seed", "5", "--verbs", "run"])
    assert campaign.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("seed 5: 30 kills, 0 came too late, 0 failures, ")
    assert lines[-4].split()[:2] == ["run", "launcher"]


def test_a_race_that_goes_on_in_isolated_starts_is_no_failure():
    hit = trial("race", "worker", signal.SIGINT, rank=1)
    text = "note: contenders of mlp from now on in isolated\n  starts: rank 1 (pid 7) was killed by SIGINT\n"
    assert not list(campaign._named(hit, told(text), 0))
    assert list(campaign._named(hit, told("note: nothing happened\n"), 0)) == ["exit code 0 instead of 1"]


def test_a_race_names_the_rank_below_its_table():
    killed = trial("race", "worker", signal.SIGKILL)
    text = "failed: allreduce, mlp, round 1: rank {} (pid 7)\n  was killed by SIGKILL: a person with kill -9\n"
    assert not list(campaign._named(killed, told(text.format(killed.rank)), 1))
    assert list(campaign._named(killed, told(text.format(5)), 1))

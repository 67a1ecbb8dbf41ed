"""Races without processes: order, restarts, failures and verdicts. Real ones are in tests/multi."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.cli.race_view import closing, spoken
from paceline.cluster.environment import capture
from paceline.errors import Refused, Stopped, WorkerFailed, WrongCommand
from paceline.measure.record.record import read
from paceline.race import plan as cells
from paceline.race.cells import BASELINE
from paceline.race.folder import open_folder
from paceline.race.plan import plan
from paceline.race.race import Nobody, race
from paceline.race.results.verdict import verdict
from paceline.run.reference import is_bound
from tests.race.fake_race import SPEED, Isolated, drawn, raced, small

PROGRAM = Path(__file__).with_name("fake_race.py")


# the plan -------------------------------------------------------------------------------------------


def test_baseline_limit_and_ddp_are_always_there():
    labels = {entry.label for entry in plan(small(contenders=["wfbp"])).entries}
    assert labels == {BASELINE, "limit", "ddp", "wfbp"}
    assert {entry.label for entry in plan(small(contenders=["ddp", "wfbp"])).entries} == labels


def test_every_combination_is_a_cell_and_rounds_are_shuffled_by_the_seed():
    suite = small(models=["mlp", "small_cnn"], workers=[1, 2], batch_sizes=[8, 16], rounds=3)
    planned = plan(suite)
    assert len(planned.heats) == 8
    # per model and batch: a baseline, allreduce alone, and three on two workers
    assert len(planned.cells) == 3 * 4 * 5
    assert len({cell.name for cell in planned.cells}) == len(planned.cells)
    rounds = [[c.key for c in planned.cells if c.round == number] for number in (1, 2, 3)]
    assert rounds[0] != rounds[1] != rounds[2]
    assert len({frozenset(keys) for keys in rounds}) == 1
    assert [cell.name for cell in plan(suite).cells] == [cell.name for cell in planned.cells]
    assert [c.name for c in plan(suite.model_copy(update={"seed": 1})).cells] != [c.name for c in planned.cells]


def test_rounds_that_train_for_accuracy_have_a_seed_each_and_others_one_for_all():
    longer = plan(small(seed=7, workers=[2], rounds=3, run={"epochs": 2, "source": "fake(cpu)"})).cells
    assert {(cell.round, cell.run.seed) for cell in longer} == {(1, 7), (2, 8), (3, 9)}
    assert {cell.run.seed for cell in plan(small(seed=7, workers=[2], rounds=3)).cells} == {7}


def test_a_worker_has_the_same_threads_in_every_cell():
    cells = plan(small(workers=[1, 2])).cells
    assert len({cell.run.threads for cell in cells}) == 1


def test_no_contender_is_called_as_the_baseline_is():
    with pytest.raises(WrongCommand, match=r"contender 'one worker': .* another label"):
        plan(small(contenders=["one worker: allreduce"]))


@pytest.mark.parametrize("choice", ["image_size=64", "threads=2", "precision=bf16"])
def test_other_work_of_a_worker_has_no_efficiency(choice, tmp_path):
    suite = small(contenders=[choice], rounds=1, run={"threads": 1})
    found = {r.race["label"]: r.efficiency for r in raced(tmp_path, suite, drawn({choice: 100.0})).records.values()}
    assert found["ddp"]
    assert not found[choice]


def test_what_is_refused_of_all_contenders_is_told_once():
    with pytest.raises(Refused) as refused:
        plan(small(run={"cpus": -1}))
    assert [line.split(":")[0] for line in refused.value.problems] == ["--cpus -1"]


def test_refused_contenders_are_told_all_at_once_before_anything_runs():
    with pytest.raises(Refused) as refused:
        plan(small(contenders=["rule=grad,exchange=neighbor(ring)", "alreduce", "rule=exact_diffusion"]))
    told = "\n".join(refused.value.problems)
    assert "rule=grad,exchange=neighbor(ring) (mlp, 2 workers, batch 32):" in told
    assert "did you mean allreduce?" in told


def test_a_contender_that_is_refused_in_every_heat_is_named_once():
    with pytest.raises(Refused) as refused:
        plan(small(models=["mlp", "small_cnn"], contenders=["alreduce", "a: rule=grad,exchange=neighbor(ring)"]))
    assert [line.partition(": ")[0] for line in refused.value.problems] == ["alreduce", "a"]


# running and restarting -----------------------------------------------------------------------------


def test_a_race_leaves_one_record_per_cell_with_efficiency(tmp_path):
    result = raced(tmp_path)
    paths = sorted(result.folder.path.glob("*.json"))
    assert len(paths) == len(result.plan.cells) == 20
    records = [read(path) for path in paths]
    ours = [record for record in records if record.run.strategy == "allreduce"]
    for record in ours:
        assert record.efficiency["value"] == pytest.approx(100 / 110, rel=0.05)
        assert record.efficiency["speedup"]["value"] == pytest.approx(100 / 55, rel=0.05)
    ids = {record.id for record in records if record.workers == 1}
    assert {record.efficiency["baseline"] for record in ours} <= ids


def test_a_record_says_which_contender_of_which_heat_it_is_of(tmp_path):
    suite = small(contenders=["from https://me:S1@host/x: allreduce", "local_sgd"], workers=[1, 2], rounds=1)
    speed = {entry.label: 100.0 for entry in plan(suite).entries}
    result = raced(tmp_path, suite, drawn(speed))
    found = {(r.race["heat"], r.race["label"]): r.race["same_result"] for r in result.records.values()}
    one, two, hidden = "mlp, 1 worker, batch 32", "mlp, 2 workers, batch 32", "from https://***@host/x"
    assert found == {
        (one, BASELINE): True,
        **{(one, label): label != "local_sgd" for label in (hidden, "local_sgd")},
        **{(two, label): label != "local_sgd" for label in ("limit", "ddp", hidden, "local_sgd")},
    }


def test_a_race_that_is_killed_keeps_finished_cells_and_repeats_the_killed_one(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path), "0.3"]
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    begun = [process.stdout.readline().strip() for _ in range(4)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    finished, killed = begun[:3], begun[3]

    planned = plan(small())
    folder, known = open_folder(planned, tmp_path)
    assert known
    before = {name: folder.path.joinpath(f"{name}.json").read_bytes() for name in finished}
    seen = []

    def measured(cell):
        seen.append(cell.name)
        return drawn()(cell)

    result = race(planned, folder, measured=Isolated(measured))
    assert result.kept == 3
    assert not set(finished) & set(seen)
    assert seen[0] == killed
    assert len(seen) == 17
    assert result.failures == []
    assert {name: folder.path.joinpath(f"{name}.json").read_bytes() for name in finished} == before
    assert not list(folder.path.glob("*.started"))


def test_without_a_kill_nothing_is_reported_as_failed(tmp_path):
    assert raced(tmp_path).failures == []


def test_a_finished_race_is_not_gone_on_with(tmp_path):
    first = raced(tmp_path)
    second = raced(tmp_path)
    assert first.folder.path != second.folder.path
    assert second.kept == 0


def test_another_race_does_not_go_on_with_this_one(tmp_path):
    planned = plan(small())
    folder, _ = open_folder(planned, tmp_path)
    assert open_folder(planned, tmp_path)[0].path == folder.path
    assert open_folder(planned, tmp_path, fresh=True)[0].path != folder.path
    assert not open_folder(plan(small(rounds=6)), tmp_path)[1]


@pytest.mark.parametrize("other", [{"packages": {"torch": "9.9"}}, {"processor": "another"}, {"cores": 999}], ids=str)
def test_another_torch_or_machine_is_another_race(other, tmp_path, monkeypatch):
    found, (folder, _) = capture(), open_folder(plan(small()), tmp_path)
    monkeypatch.setattr("paceline.race.plan.capture", lambda: found | other)
    assert not open_folder(plan(small()), tmp_path)[1]
    monkeypatch.setattr("paceline.race.plan.capture", lambda: found)
    assert open_folder(plan(small()), tmp_path)[0].path == folder.path


def test_two_processes_do_not_run_one_race(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path), "5"]
    environ = {**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    process.stdout.readline()
    try:
        with pytest.raises(WrongCommand, match="another process runs it"):
            raced(tmp_path)
    finally:
        process.kill()
        process.communicate()


def test_a_cell_that_fails_is_marked_and_the_race_goes_on(tmp_path):
    draw = drawn()

    def measured(cell):
        if cell.label == "ddp" and cell.round == 2:
            raise WorkerFailed("rank 1 (pid 7) exited with 1")
        return draw(cell)

    result = raced(tmp_path, measured=Isolated(measured))
    [(cell, record)] = result.failures
    assert (cell.label, cell.round, record.failure) == ("ddp", 2, "rank 1 (pid 7) exited with 1")
    assert result.done == 20
    [heat] = result.plan.heats
    assert len(result.standing(heat, "ddp").records) == 4
    again = race(result.plan, result.folder, measured=Isolated(draw), retry=True)
    assert again.failures == []
    assert again.kept == 16, "the round of the failed cell runs again as a whole"


def test_retry_finds_a_race_that_came_to_its_end_with_failed_cells(tmp_path):
    def measured(cell):
        if cell.label == "ddp" and cell.round == 2:
            raise WorkerFailed("rank 1 (pid 7) exited with 1")
        return drawn()(cell)

    first = raced(tmp_path, measured=Isolated(measured))
    assert not open_folder(first.plan, tmp_path / "elsewhere", retry=True)[1]
    folder, known = open_folder(first.plan, tmp_path, retry=True)
    assert (known, folder.path) == (True, first.folder.path)
    again = race(first.plan, folder, measured=Isolated(drawn()), retry=True)
    assert (again.kept, again.failures, again.rounds) == (16, [], 5)
    # nothing failed any more: the next race is a new one
    assert not open_folder(first.plan, tmp_path, retry=True)[1]


def test_a_contender_that_failed_is_retried_beside_the_others(tmp_path):
    """The machine is slower on the day of the retry: within rounds that does not matter."""

    def broken(cell):
        if cell.label == "allreduce":
            raise WorkerFailed("no memory left")
        return drawn()(cell)

    first = raced(tmp_path, measured=broken)
    slow = {label: 0.6 * rate for label, rate in SPEED.items()}
    again = race(
        first.plan, open_folder(first.plan, tmp_path, retry=True)[0], measured=Isolated(drawn(slow)), retry=True
    )
    [heat] = again.plan.heats
    assert verdict(again.field_of(heat)).headline.startswith("allreduce wins")


def test_what_ran_before_an_interruption_is_not_compared_with_what_ran_after(tmp_path):
    planned, seen = plan(small()), []

    def stops(cell):
        seen.append(cell)
        if len(seen) == 11:
            raise Stopped(signal.SIGINT)
        return drawn()(cell)

    with pytest.raises(Stopped):
        race(planned, open_folder(planned, tmp_path)[0], measured=Isolated(stops))
    again = race(planned, open_folder(planned, tmp_path)[0], measured=Isolated(drawn()))
    [heat] = again.plan.heats
    before, after = seen[8], next(c for c in planned.cells if c.round == 3 and c not in seen)
    pairs = again.standing(*before.key).paired(again.standing(*after.key))
    assert len(pairs) == 4
    assert any("round(s) 3 were interrupted" in line for line in verdict(again.field_of(heat)).notes)
    folder, known = open_folder(planned, tmp_path, retry=True)
    assert known
    mended = race(planned, folder, measured=Isolated(drawn()), retry=True)
    assert mended.kept == 16
    assert not any("interrupted" in line for line in verdict(mended.field_of(heat)).notes)


def test_a_retry_that_is_stopped_early_has_lost_nothing(tmp_path):
    def broken(cell):
        if cell.label == "ddp":
            raise WorkerFailed("lost")
        return drawn()(cell)

    def stops(cell):
        raise Stopped(signal.SIGINT)

    first = raced(tmp_path, measured=broken)
    with pytest.raises(Stopped):
        race(first.plan, open_folder(first.plan, tmp_path, retry=True)[0], measured=Isolated(stops), retry=True)
    well = [path for path in first.folder.path.glob("*.json") if read(path).verdict != "failed"]
    assert len(well) == 12, "only the round that was about to run is set aside"


def test_the_winner_is_not_slower_in_the_rounds_that_both_have(tmp_path):
    """ddp fails in the rounds in which the machine is fast: its mean is lower for no fault of its own."""
    draw = drawn({"ddp": 110.0})

    def measured(cell):
        record, events = draw(cell)
        if cell.round > 5 and cell.label == "ddp":
            raise WorkerFailed("lost")
        if cell.round > 5:
            record.rate["total"]["mean"] *= 2
        return record, events

    result = raced(tmp_path, small(rounds=10), measured)
    [heat] = result.plan.heats
    assert verdict(result.field_of(heat)).headline.startswith("ddp wins")


@pytest.mark.parametrize("text", ["limit,comm=gloo", "nothing: limit,threads=1"])
def test_the_limit_never_wins_whatever_it_is_called(text, tmp_path):
    planned = plan(small(contenders=["allreduce", text]))
    fast = drawn({entry.label: 200.0 for entry in planned.entries if is_bound(entry.run.strategy)} | SPEED)
    result = race(planned, open_folder(planned, tmp_path)[0], measured=Isolated(fast))
    [heat] = result.plan.heats
    assert verdict(result.field_of(heat)).headline.startswith("allreduce wins")


@pytest.mark.parametrize(
    ("file", "suite", "words"),
    [
        ("pkg/train.py", {}, ["python", "-m", "pkg.train", "-v"]),
        ("pkg/__main__.py", {}, ["python", "-m", "pkg"]),
        ("mine.py", {"models": ["mine:make(hidden=8)"]}, []),
        ("times.json", {"run": {"profile": "times.json"}}, []),
        ("times.json", {"run": {"compute": "replay(times.json)"}}, []),
    ],
)
def test_an_input_that_was_edited_makes_another_race(file, suite, words, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "check", lambda *_, **__: [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("one")
    first = plan(small(**suite), script=words).digest
    assert plan(small(**suite), script=words).digest == first
    (tmp_path / file).write_text("two")
    assert plan(small(**suite), script=words).digest != first


def test_a_folder_that_cannot_be_locked_is_not_a_race_under_way(tmp_path, monkeypatch):
    folder, _ = open_folder(plan(small()), tmp_path)
    seen = []

    def refuse(file, how):
        seen.append(file.writable())
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(WrongCommand, match="cannot be locked: No locks available"), folder.alone():
        pass
    assert seen == [True], "NFS locks what is open for writing only"


def test_a_script_that_was_edited_is_another_race(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    words = ["python", str(script), "--epochs", "3"]
    first = plan(small(), script=words).digest
    assert plan(small(), script=words).digest == first
    words[2:] = ["--log", str(tmp_path / "log.txt")]
    first = plan(small(), script=words).digest
    (tmp_path / "log.txt").write_text("what the script wrote")
    assert plan(small(), script=words).digest == first
    script.write_text("print(2)")
    assert plan(small(), script=words).digest != first


def test_a_retry_that_is_stopped_can_be_gone_on_with(tmp_path):
    def fails(cell):
        raise WorkerFailed("lost")

    def stops(cell):
        raise Stopped(signal.SIGINT)

    first = raced(tmp_path, small(rounds=1), fails)
    with pytest.raises(Stopped):
        race(first.plan, first.folder, measured=Isolated(stops), retry=True)
    assert open_folder(first.plan, tmp_path)[0].path == first.folder.path


def test_ctrl_c_ends_the_race_and_its_cell_runs_again(tmp_path):
    def measured(cell):
        raise Stopped(signal.SIGINT)

    with pytest.raises(Stopped):
        raced(tmp_path, measured=Isolated(measured))
    folder, known = open_folder(plan(small()), tmp_path)
    assert known
    assert not list(folder.path.glob("*.json"))
    again = race(plan(small()), folder, measured=Isolated(drawn()))
    assert (again.done, again.failures) == (20, [])


def test_no_round_starts_that_would_end_after_the_minutes(tmp_path):
    now = 0.0

    def measured(cell):
        nonlocal now
        now += 10
        return drawn()(cell)

    # four cells of 10 s are a round; two rounds fit into 100 s
    result = raced(tmp_path, small(rounds=9, minutes=100 / 60), measured, clock=lambda: now)
    assert (result.rounds, result.done, result.cut_short) == (2, 8, True)
    # with --retry the rounds that did not fit are run
    folder, known = open_folder(result.plan, tmp_path, retry=True)
    assert (known, folder.path) == (True, result.folder.path)
    assert race(result.plan, folder, measured=Isolated(measured), retry=True, clock=lambda: now).rounds == 4


def test_the_time_left_follows_the_cells_before(tmp_path):
    now, left = 0.0, []

    class Looking(Nobody):
        def began(self, race, start):
            left.append(race.seconds_left())

    def measured(cell):
        nonlocal now
        now += 2
        return drawn()(cell)

    raced(tmp_path, measured=Isolated(measured), watcher=Looking(), clock=lambda: now)
    assert left[0] is None
    assert left[1:] == [pytest.approx(2.0 * n) for n in range(19, 0, -1)]


def test_the_plan_of_a_race_holds_no_secret(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
    planned = plan(small(notes=["read with wJalrXUtnFEMI/K7MDENG"]))
    folder, _ = open_folder(planned, tmp_path)
    told = (folder.path / "race.plan").read_text()
    assert "wJalr" not in told
    assert json.loads(told)["digest"] == planned.digest


def test_the_file_of_a_cell_holds_no_secret_of_its_label():
    cells = plan(small(contenders=["from https://me:S1@host/x: wfbp"])).cells
    assert any("host" in cell.name for cell in cells)
    assert not any("S1" in cell.name for cell in cells)


def test_the_plan_of_a_race_of_a_script_holds_no_word_that_follows_a_secret_flag(tmp_path):
    folder, _ = open_folder(plan(small(), script=["python", "t.py", "--password", "S2", "--token=S1"]), tmp_path)
    told = json.loads((folder.path / "race.plan").read_text())
    assert told["script"] == ["python", "t.py", "--password", "***", "--token=***"]


@pytest.mark.parametrize("damage", [{"rate": {"total": "x"}}, {"schema": 99}, {"verdict": 1}], ids=json.dumps)
def test_a_cell_with_a_damaged_record_runs_again(damage, tmp_path):
    first = raced(tmp_path)
    (first.folder.path / "race.done").unlink()
    cell = first.plan.cells[3]
    path = first.folder.record_path(cell)
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    [(found, why)] = first.folder.damaged(first.plan)
    assert found == path
    assert why

    seen = []

    def measured(cell):
        seen.append(cell)
        return drawn()(cell)

    again = race(first.plan, first.folder, measured=Isolated(measured))
    assert (again.kept, seen, again.failures) == (19, [cell], [])
    assert read(path).verdict == "steady"
    assert len(list(first.folder.path.glob(f"{cell.name}.damaged-*"))) == 1
    assert first.folder.damaged(first.plan) == []


# verdicts -------------------------------------------------------------------------------------------


def told(result):
    [heat] = result.plan.heats
    return list(spoken(verdict(result.field_of(heat), heat.workers)))


def test_the_winner_is_named_with_its_ratio_and_interval(tmp_path):
    first = told(raced(tmp_path))[0]
    assert first.startswith("allreduce wins on 2 workers: 1.1")
    assert "x ddp (95 % interval 1.0" in first or "x ddp (95 % interval 1.1" in first


def test_equal_contenders_show_no_difference(tmp_path):
    first = told(raced(tmp_path, measured=drawn({"allreduce": 90.0}, noise=0.03)))[0]
    assert first.startswith("Not decided yet on 2 workers: ddp runs at 1.02x allreduce (95 % interval 0.99 to 1.05)")


def test_fewer_than_five_rounds_give_no_verdict(tmp_path):
    assert told(raced(tmp_path, small(rounds=4)))[0] == (
        "No verdict yet on 2 workers: 4 fresh starts of allreduce and ddp are too few, 5 are needed."
    )


def test_what_changes_convergence_never_wins_without_accuracy(tmp_path):
    suite = small(contenders=["allreduce", "local_sgd", "rule=atc,exchange=neighbor(ring)"])
    fast = {"local_sgd": 900.0, "rule=atc,exchange=neighbor(ring)": 800.0}
    lines = told(raced(tmp_path, suite, drawn(fast)))
    assert lines[0].startswith("allreduce wins")
    changes = [line for line in lines if "changes convergence" in line]
    assert changes[0].startswith("local_sgd runs at 9.96x the rate of ddp (95 % interval 9.78 to 10.14) but changes")
    assert changes[0].endswith("no winner without accuracy (training loss 2.000 against 2.000).")
    assert changes[1].startswith("rule=atc,exchange=neighbor(ring) runs at")


def test_the_limit_never_wins(tmp_path):
    assert "limit" not in told(raced(tmp_path, measured=drawn({"limit": 1e6})))[0]


def test_two_labels_of_the_same_choices_are_two_contenders(tmp_path):
    """A configuration against itself."""
    suite = small(contenders=["a: allreduce", "b: allreduce"])
    result = raced(tmp_path, suite, drawn({"a": 100.0, "b": 100.0, "ddp": 100.0}))
    [heat] = result.plan.heats
    found = {standing.label: standing.rates for standing in result.field_of(heat).standings}
    assert len(found["a"]) == len(found["b"]) == 5
    assert found["a"] != found["b"]
    assert " are level on 2 workers" in told(result)[0]
    assert [line[0] for line in closing(result) if line.startswith(("a  ", "b  "))] == ["a", "b"]


def test_several_equal_contenders_seldom_have_a_winner(tmp_path):
    """Picking the fastest of four and then asking whether it is faster must not find winners by itself."""
    suite = small(contenders=["allreduce", "wfbp", "bsp"], rounds=5)
    planned = plan(suite)
    [heat] = planned.heats
    result = raced(tmp_path, suite, drawn(dict.fromkeys(["ddp", "allreduce", "wfbp", "bsp"], 100.0)))
    dice = np.random.default_rng(4)
    records = [record for record in result.records.values() if not is_bound(record.run.strategy)]
    winners = 0
    for _ in range(1000):
        for record in records:
            record.rate["total"]["mean"] = 100 + float(dice.standard_normal())
        winners += verdict(result.field_of(heat)).winner is not None
    assert winners <= 70


def test_a_race_with_another_label_is_another_race():
    """Records carry the label: one race must not have two names for a contender."""
    first, second = (plan(small(contenders=[f"{label}: wfbp"])) for label in ("my best", "my-best"))
    assert [cell.name for cell in first.cells] == [cell.name for cell in second.cells]
    assert first.digest != second.digest

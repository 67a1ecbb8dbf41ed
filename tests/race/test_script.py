"""Races of a user's script without processes: what reaches it, and what its records say."""

import shlex
import sys
from dataclasses import replace

import pytest

from paceline.cli import main
from paceline.cli.race_view import closing
from paceline.errors import Refused, WorkerFailed
from paceline.measure.combining import make_record
from paceline.race.folder import open_folder
from paceline.race.plan import plan
from paceline.race.race import race
from paceline.race.results.verdict import verdict
from paceline.race.script import launch_measured, left_out, measure_script, script_suite
from paceline.race.script_record import TAKEN, _in_blocks, command_of, launched_by, run_of, script_of, work_of
from paceline.race.suite import Suite
from paceline.run.run import Run
from tests.measure.test_measure import level, rank_of
from tests.race.fake_race import Isolated, drawn, record_of, small

SCRIPT = (sys.executable, "my train.py")


def planned(**changes):
    return plan(script_suite(small(**changes), SCRIPT), script=SCRIPT)


@pytest.mark.parametrize("choice", ["precision=bf16", "accumulate=2", "batch_size=8", "optimizer=adam", "compile=true"])
def test_what_does_not_reach_the_script_is_refused(choice):
    with pytest.raises(Refused) as refused:
        planned(contenders=[f"half: allreduce,{choice}", "wfbp"])
    [told] = refused.value.problems
    assert told.startswith(f"contender half: {choice} with a script: the script sets its ")
    assert ". try: leave it out" in told


def test_what_reaches_the_script_is_not_refused():
    contenders = ["allreduce,schedule=wfbp", "allreduce,comm=gloo", "wfbp,threads=2", "wfbp,cpus=0.5"]
    assert len(planned(contenders=contenders).entries) == 3 + 4


def test_what_the_launcher_does_for_all_cells_is_kept():
    suite = script_suite(small(run={"threads": 1, "cpus": 0.5, "image_size": 32}), SCRIPT)
    assert suite.common == {"threads": 1, "cpus": 0.5}


def test_what_a_suite_says_in_vain_is_named():
    suite = Suite.model_validate({"models": ["resnet50"], "rounds": 3, "run": {"threads": 1, "image_size": 32}})
    assert left_out(suite) == ["models", "run.image_size"]
    assert left_out(Suite(run={"cpus": 0.5})) == []


def test_the_record_has_the_exact_command_and_the_profile_is_handed_on(monkeypatch):
    handed = {}

    def start(argv, folder, run, *, choices, **_):
        handed.update(choices)

    monkeypatch.setattr("paceline.race.script._start", start)
    seen = rank_of(0, [], level(20), batch=16)
    monkeypatch.setattr("paceline.race.script_record._seen", lambda *_: seen)
    run = Run(workers=1, model="mlp", batch_size=1, schedule="mgwfbp", profile="p.json", threads=2, cpus=0.5, seed=3)
    record, _ = measure_script(SCRIPT, run)
    asked = "--schedule mgwfbp --profile p.json --cpus 0.5 --threads 2"
    assert record.text == f"paceline run -np 1 {asked} -- {sys.executable} 'my train.py'"
    assert handed == {"schedule": "mgwfbp", "profile": "p.json"}
    assert (record.run.model, record.run.batch_size) == (f"{sys.executable} 'my train.py'", 16)
    assert script_of(record) == list(SCRIPT)
    assert script_of(record_of(run, 1.0)) == []


def test_a_cell_that_fails_names_the_script(tmp_path):
    made = planned(rounds=1)
    folder, _ = open_folder(made, tmp_path)

    def measured(cell):
        raise WorkerFailed("rank 1 (pid 7) exited with 1")

    result = race(made, folder, measured=Isolated(measured))
    for cell, record in result.failures:
        assert record.run.model == f"{sys.executable} 'my train.py'"
        assert record.text.startswith(f"paceline run -np {cell.run.workers} ")
        assert record.text.endswith(f" --threads {cell.run.threads} -- {sys.executable} 'my train.py'")
    assert len(result.failures) == 4


@pytest.mark.parametrize("same", [True, False])
def test_a_script_that_cuts_its_batch_by_workers_has_no_scaling(tmp_path, same):
    draw = drawn()

    def measured(cell):
        record, events = draw(cell)
        batch = 64 if same else 64 // cell.run.workers
        return record.model_copy(update={"run": record.run.with_(batch_size=batch)}), events

    made = planned()
    result = race(made, open_folder(made, tmp_path)[0], measured=Isolated(measured))
    [heat] = made.heats
    told = [line for line in verdict(result.field_of(heat)).notes if "no scaling" in line]
    efficiencies = [r.efficiency for r in result.records.values() if r.workers == 2]
    assert all(efficiencies) if same else not any(efficiencies)
    assert told == (
        [] if same else ["no scaling of limit, ddp, allreduce: a worker has 32 samples per step there and 64 alone"]
    )
    [row] = [line for line in closing(result) if line.startswith("allreduce   ")]
    assert row.endswith(" -") is not same


CONTENDERS = ["wfbp,schedule=bsp", "rule=atc,exchange=neighbor(ring),comm=gloo", "comm=gloo", "local_sgd,deadline=60"]


def test_the_command_of_a_record_starts_the_cell_again(monkeypatch, tmp_path):
    """The command line accepts the command of a record, and starts the same run; so does `rerun`."""
    made = planned(contenders=CONTENDERS, rounds=1, run={"cpus": 0.5, "threads": 1})
    again = []
    monkeypatch.setattr("paceline.race.script.launch_measured", lambda argv, **given: again.append((argv, given)))
    for cell in made.cells:
        text = command_of(SCRIPT, cell.run)
        with pytest.raises(SystemExit) as end:
            main(["run", "--runs", str(tmp_path), *shlex.split(text)[2:]])
        assert not end.value.code
        argv, given = again.pop()
        assert argv == list(SCRIPT)
        for name in ("workers", *TAKEN):
            assert getattr(given["run"], name) == getattr(cell.run, name), (cell.label, name)
        run, choices = launched_by(record_of(cell.run, 1.0).model_copy(update={"text": text}))
        assert (run, choices) == (given["run"], given["choices"]), cell.label


def test_a_script_is_named_without_interpreter_and_folder():
    record = record_of(Run(workers=1, model="mlp"), 1.0)
    names = {
        "paceline run -np 1 -- /a/b/python -u '/c/my train.py' --lr 3": "my train.py",
        "paceline run -np 1 -- ./train --lr 3": "train",
        "paceline run -np 1 -- python3.11 -m package.train": "package.train",
        "paceline run -np 1 --model mlp": "mlp",
    }
    for text, name in names.items():
        assert work_of(record.model_copy(update={"text": text})) == name


def test_a_record_of_an_older_race_is_started_with_the_settings_that_it_has():
    run = Run(workers=2, model="mlp", strategy="wfbp", comm="gloo", threads=1)
    old = record_of(run, 1.0).model_copy(update={"text": "paceline race -np 2 --contender wfbp -- python x.py"})
    launched, choices = launched_by(old)
    assert choices == {"strategy": "wfbp", "comm": "gloo"}
    assert (launched.workers, launched.strategy, launched.threads) == (2, "wfbp", 1)


def started(monkeypatch, leave, problem=None):
    """Replace the start of a script by what it leaves in the folder of its job."""

    def start(argv, folder, run, **_):
        leave(folder)
        if problem is not None:
            raise problem
        return folder

    monkeypatch.setattr("paceline.race.script._start", start)


def in_two_ranks(folder):
    for rank in (0, 1):
        report = replace(rank_of(rank, [], level(20), batch=16), settings={"strategy": "wfbp"})
        (folder / f"measured-{rank}").touch()
        (folder / f"steps-{rank}.json").write_text(report.to_json())


def launched(run, **changes):
    kept = []
    why = launch_measured(SCRIPT, **{"run": run, "choices": {}, "chosen": ("comm",), "keep": kept.append, **changes})
    return why, kept


def test_a_script_that_is_launched_leaves_a_record_with_the_strategy_that_it_has_chosen(monkeypatch):
    started(monkeypatch, in_two_ranks)
    why, [record] = launched(Run(workers=2))
    assert why == ""
    assert record.run.strategy == "wfbp"
    assert record.text == f"paceline run -np 2 --comm auto -- {sys.executable} 'my train.py'"
    assert (record.run.model, record.run.batch_size) == (f"{sys.executable} 'my train.py'", 16)
    assert record.same_result
    assert "cores" in record.busy


def test_a_script_that_fails_leaves_the_record_of_its_failure_if_it_was_measured(monkeypatch):
    lost = WorkerFailed("rank 1 (pid 7) exited with 1")
    for leave, count in ((lambda folder: (folder / "measured-1").touch(), 1), (lambda folder: None, 0)):
        kept = []
        started(monkeypatch, leave, lost)
        with pytest.raises(WorkerFailed, match="rank 1"):
            launched(Run(workers=2), keep=kept.append)
        assert [record.failure for record in kept] == ["rank 1 (pid 7) exited with 1"][:count]
        assert [record.verdict for record in kept] == ["failed"][:count]


def test_a_script_that_trains_nothing_has_no_record_and_the_reason_is_told(monkeypatch):
    started(monkeypatch, lambda folder: None)
    assert launched(Run(workers=2)) == (
        "no rank has made an update with pace.step(), or none ended in an orderly way",
        [],
    )

    def one_of_two(folder):
        in_two_ranks(folder)
        (folder / "steps-1.json").unlink()

    started(monkeypatch, one_of_two)
    why, kept = launched(Run(workers=2))
    assert (kept, "rank 1 left no times" in why) == ([], True)


def in_updates(workers):
    """A script that deals its own batches: ten updates per second, whoever counts them."""
    seen = [rank_of(k, [], level(20), batch=0) for k in range(workers)]
    ranks = [_in_blocks(rank, 20) for rank in seen]
    run = Run(workers=workers, model="mlp", strategy="allreduce")
    return make_record(run, [], ranks).model_copy(update={"run": run_of(SCRIPT, run)})


def test_updates_are_of_the_whole_job_and_not_added_up_over_ranks():
    record = in_updates(2)
    assert (record.unit, record.run.batch_size) == ("step", None)
    assert record.rate["total"]["mean"] == pytest.approx(10, rel=0.01)
    assert record.rate["per_worker"] == pytest.approx([10, 10], rel=0.01)


def test_a_script_that_deals_its_own_batches_has_no_scaling(tmp_path):
    made = planned()

    def measured(cell):
        return in_updates(cell.run.workers), []

    result = race(made, open_folder(made, tmp_path)[0], measured=Isolated(measured))
    [heat] = made.heats
    assert not any(record.efficiency for record in result.records.values())
    lines = [line for line in verdict(result.field_of(heat)).notes if "no scaling" in line]
    assert len(lines) == 1
    assert "deals its own batches" in lines[0]
    closed = list(closing(result))
    assert not any("speed-up" in line for line in closed)
    [row] = [line for line in closed if line.startswith("allreduce   ")]
    assert row.endswith(" -")

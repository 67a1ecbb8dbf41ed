"""From what ranks saw to a record, without processes."""

import random
from pathlib import Path

import pytest

from paceline.cli.show import details, step_lines
from paceline.errors import WrongCommand
from paceline.measure.combining import failed_record, make_record
from paceline.measure.meter import PARTS
from paceline.measure.periods import period_of
from paceline.measure.record.rank_report import RankReport
from paceline.measure.record.record import read
from paceline.measure.stats.intervals import block_interval
from paceline.race.keep import check_baseline, check_runs, efficiency, figures, keep, save
from paceline.run.run import Run

STEPS, BLOCKS = 5, 4
RUN = Run(workers=2, model="mlp", batch_size=16)


def rank_of(number, warm, steps, **changes):
    length = len(steps) // BLOCKS
    seconds = [sum(steps[k * length : (k + 1) * length]) for k in range(BLOCKS)]
    share = {"data": 0.0, "forward": 0.3, "backward": 0.5, "exposed": 0.1, "update": 0.05}
    values = {
        "environment": {"cores": 2},
        "rank": number,
        "unit": "img",
        "device": "cpu",
        "comm": "shm",
        "samples": 16 * length,
        "seconds": seconds,
        "warmup": warm,
        "steps": steps,
        "parts": {part: [share[part] * step for step in steps] for part in PARTS},
        "received_per_step": [0.0, 0.0],
        "pushed_per_step": [],
        "cpu_seconds_per_step": 0.08,
        "pss_peak": 10,
        "rss_peak": 20,
        "losses": [2.0] * (len(warm) + len(steps)),
        "flops": 1e9 if number == 0 else None,
        "peak": 4e11,
    }
    return RankReport(**{**values, **changes})


def record_of(warm, steps, run=RUN, **settings):
    return make_record(run, [], [rank_of(k, warm, steps) for k in range(run.workers)], **settings)


def level(count, seconds=0.1, seed=0):
    dice = random.Random(seed)
    return [seconds * (1 + 0.01 * dice.gauss(0, 1)) for _ in range(count)]


def test_a_steady_series_is_called_steady_and_nothing_is_dropped():
    record = record_of(level(3), level(20))
    assert (record.verdict, record.series["dropped_blocks"]) == ("steady", 0)
    assert record.rate["total"]["mean"] == pytest.approx(2 * 16 / 0.1, rel=0.01)
    assert len(record.series["seconds"]) == 20


def test_warm_up_that_reaches_into_the_measured_steps_is_left_out():
    record = record_of([0.5], [0.4, 0.3, *level(18)])
    assert (record.verdict, record.series["dropped_blocks"]) == ("steady", 1)
    assert len(record.rate["total"]["repeats"]) == BLOCKS - 1
    assert record.rate["total"]["mean"] == pytest.approx(320, rel=0.01)
    assert record.breakdown["step"] == pytest.approx(0.1, rel=0.01)


def test_a_series_that_never_settles_is_unsteady():
    record = record_of(level(3), [0.1 * 1.05**k for k in range(20)])
    assert record.verdict == "unsteady"
    assert record.series["why"]
    assert any(line.startswith("why     it drifts") for line in details(record))


def test_too_few_steps_cannot_be_steady():
    assert record_of([0.1], level(4)).verdict == "unsteady"


def test_a_rule_that_averages_every_few_steps_is_judged_by_the_period():
    assert period_of(RUN) == 1
    assert period_of(RUN.with_(rule="atc(every=8)")) == 8
    assert period_of(RUN.with_(rule="atc(every=2, global_every=3)", exchange="neighbor(ring)")) == 6
    assert period_of(RUN.with_(strategy="ddp")) == 1


def test_the_breakdown_adds_up_to_the_step():
    parts = record_of(level(3), level(20)).breakdown
    assert sum(v for k, v in parts.items() if k != "step") == pytest.approx(parts["step"], rel=0.02)


def test_use_of_the_machine_is_per_worker():
    found = record_of(level(3), level(20)).resources
    assert found["cpu_use"] == pytest.approx([0.8, 0.8], rel=0.01)
    assert found["flops"]["utilization"] == pytest.approx([1e9 * 160 / 4e11] * 2, rel=0.01)
    given = record_of(level(3), level(20), peak=1e12).resources["flops"]
    assert (given["peak"], given["peak_is"]) == ([1e12, 1e12], "given")


def test_step_lines_are_those_of_tf_cnn_benchmarks():
    lines = list(step_lines(record_of(level(3), level(20))))
    assert lines[0] == "Step\tImg/sec\ttotal_loss"
    assert [line.split("\t")[0] for line in lines[1:4]] == ["1", "10", "20"]
    assert lines[1].split("\t")[1].endswith("+/- 0.0 (jitter = 0.0)")
    assert lines[3].endswith("\t2.000")
    assert lines[4:] == ["-" * 64, lines[5], "-" * 64]
    assert lines[5].startswith("total images/sec: 3")


def test_step_lines_know_the_last_loss_of_a_block_on_a_gpu():
    record = record_of(level(3), level(20)).model_copy(update={"loss": [4.0, 3.0, 2.0, 1.0]})
    lines = list(step_lines(record))
    assert [line.split("\t")[-1] for line in lines[1:4]] == ["-", "3.000", "1.000"]
    assert list(step_lines(record.model_copy(update={"loss": []})))[1].endswith("\t-")


def test_step_lines_show_the_loss_of_the_last_backward_of_a_step():
    record = record_of(level(3), level(20)).model_copy(
        update={"run": RUN.with_(accumulate=2), "loss": [9.0] * 6 + [float(k) for k in range(40)]}
    )
    assert [line.split("\t")[-1] for line in list(step_lines(record))[1:4]] == ["1.000", "19.000", "39.000"]


def test_details_fit_in_eighty_columns():
    record = record_of(level(3), level(20))
    alone = record_of(level(3), level(20, 0.09), Run(model="mlp", batch_size=16))
    record = record.model_copy(update={"efficiency": efficiency(record, alone)})
    lines = list(details(record))
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("scaling 1.8") for line in lines)


def test_efficiency_names_its_baseline_and_has_an_interval():
    record, alone = (
        record_of(level(3), level(20)),
        record_of(level(3), level(20, 0.09), Run(model="mlp", batch_size=16)),
    )
    found = efficiency(record, alone)
    assert found["baseline"] == alone.id
    assert found["low"] < found["value"] < found["high"]
    assert found["value"] == pytest.approx(0.9, rel=0.02)
    assert figures(record.model_copy(update={"efficiency": found}))["efficiency"]["value"] == found["value"]


def test_a_baseline_must_be_one_worker_of_the_same_work():
    two, other = record_of(level(3), level(20)), record_of(level(3), level(20), Run(model="small_cnn", batch_size=16))
    with pytest.raises(WrongCommand, match="it has 2 workers"):
        check_baseline(RUN, two)
    with pytest.raises(WrongCommand, match="model small_cnn there, mlp here"):
        check_baseline(RUN, other)
    with pytest.raises(WrongCommand, match="that run failed"):
        check_baseline(RUN, failed_record(Run(model="mlp"), "lost"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"image_size": 64}, "image size 64 there, unset here"),
        ({"precision": "bf16"}, "precision bf16 there, fp32 here"),
        ({"threads": 2}, "threads 2 there, 1 here"),
        ({"batch_size": 8}, "batch size 8 there, 16 here"),
        ({"compute": "replay(p.json)"}, r"compute replay\(p.json\) there, real here"),
        ({"cpus": 0.5}, "cpus 0.5 there, unset here"),
    ],
)
def test_a_baseline_of_other_work_says_what_differs_and_how_to_make_one(change, told):
    run = RUN.with_(threads=1, strategy="wfbp")
    work = Run(model="mlp", batch_size=16, threads=1)
    check_baseline(run, record_of(level(3), level(20), work))
    check_baseline(run.with_(batch_size=None, global_batch=32), record_of(level(3), level(20), work))
    alone = record_of(level(3), level(20), work).model_copy(update={"run": work.with_(**change)})
    with pytest.raises(WrongCommand, match=told) as refused:
        check_baseline(run, alone)
    assert refused.value.remedy == "paceline run -np 1 --model mlp --batch-size 16 --threads 1"


def test_the_interval_of_a_rate_is_over_the_steps_of_the_process():
    steps = level(20)
    found = record_of(level(3), steps).rate["total"]
    expected = block_interval(steps)
    assert found["steps"] == 20
    assert found["high"] / found["mean"] == pytest.approx(expected.high / expected.centre)
    assert found["low"] / found["mean"] == pytest.approx(expected.low / expected.centre)


def test_a_run_that_fails_leaves_a_record(tmp_path, monkeypatch):
    from paceline.errors import WorkerFailed
    from paceline.race import keep as module

    def lost(*_, **__):
        raise WorkerFailed("rank 1 (pid 7) was killed by SIGKILL")

    monkeypatch.setattr(module, "measure", lost)
    with pytest.raises(WorkerFailed):
        keep(RUN, tmp_path / "runs")
    [path] = (tmp_path / "runs").glob("*.json")
    record = read(path)
    assert (record.verdict, record.failure) == ("failed", "rank 1 (pid 7) was killed by SIGKILL")
    assert list(details(record)) == ["failed  rank 1 (pid 7) was killed by SIGKILL"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path):
    check_runs(tmp_path / "a" / "b")
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongCommand, match="is not a folder"):
        check_runs(tmp_path / "file" / "runs")


@pytest.mark.parametrize("address", ["s3://bucket/x", "gs://bucket", "https://host/x", "file:///tmp/x"])
def test_records_are_kept_in_folders_only(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongCommand, match="this version keeps records in folders only") as refused:
        check_runs(Path(address))
    assert refused.value.remedy == "--runs FOLDER"
    with pytest.raises(WrongCommand, match="folders only"):
        keep(RUN, Path(address))
    assert not list(tmp_path.iterdir())


def test_an_address_is_refused_without_the_secret_in_it():
    with pytest.raises(WrongCommand, match=r"--runs s3://\*\*\*@bucket/x:"):
        check_runs(Path("s3://me:t0ps3cret@bucket/x"))


def test_a_baseline_is_of_the_same_source_though_its_password_is_hidden():
    run = Run(model="mlp", batch_size=16, threads=1, source="s3://me:t0ps3cret@bucket")
    check_baseline(run.with_(workers=2), record_of(level(3), level(20), run).without_secrets())


def test_a_record_of_what_ranks_saw_is_whole(tmp_path):
    kept = record_of(level(3), level(20))
    assert save(kept, [], tmp_path / "r.json") == read(tmp_path / "r.json") == kept


@pytest.mark.parametrize(("strategy", "same"), [("allreduce", True), ("ddp", True), ("local_sgd", False)])
def test_every_record_says_whether_it_has_the_result_of_allreduce(strategy, same):
    run = RUN.with_(strategy=strategy)
    ranks = [rank_of(number, level(8), level(20)) for number in range(2)]
    assert make_record(run, [], ranks).same_result is same
    assert failed_record(run, "lost").same_result is same


def test_machines_that_differ_are_noted():
    same = [rank_of(k, [], level(40), environment={"cores": 8, "processor": "x"}) for k in range(RUN.workers)]
    assert not [note for note in make_record(RUN, [], same).notes if "machines" in note]
    last = rank_of(RUN.workers - 1, [], level(40), environment={"cores": 4, "processor": "x"})
    notes = make_record(RUN, [], [*same[:-1], last]).notes
    assert "machines of ranks differ in cores; the environment is that of rank 0" in notes


def test_a_run_that_waits_for_data_is_called_input_bound():
    from paceline.measure.combining import _starved

    assert list(_starved({"data": 0.05, "step": 1.0})) == []
    (note,) = _starved({"data": 0.34, "step": 1.0})
    assert note.startswith("input-bound: 34 % of a step waits for data. try: ")


def test_bytes_of_ddp_are_its_buckets_as_a_ring_moves_them():
    run = Run(workers=3, model="mlp", batch_size=16, strategy="ddp")
    ranks = [rank_of(k, level(3), level(20), received_per_step=[0.0] * 3, buckets=[200, 100]) for k in range(3)]
    counted = make_record(run, [], ranks).bytes
    assert counted["buckets"] == [200, 100]
    assert counted["received_per_step"] == counted["sent_per_step"] == [400.0] * 3  # 2 * 300 * (3 - 1) / 3
    assert counted["per_edge"] == [[0.0, 0.0, 400.0], [400.0, 0.0, 0.0], [0.0, 400.0, 0.0]]
    assert any(line.startswith("bytes   400 B received") for line in details(make_record(run, [], ranks)))
    unknown = [rank_of(k, level(3), level(20), received_per_step=[0.0] * 3) for k in range(3)]
    assert "buckets" not in make_record(run, [], unknown).bytes

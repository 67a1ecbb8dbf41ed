import json
import shlex

import pytest
import typer

from paceline.cli import app, main
from paceline.cli.show import memory, plus_minus, size, table
from paceline.measure.stats.intervals import Interval
from paceline.run.compose.compose import axes_of, servers_of
from paceline.run.run import Run
from paceline.run.strategies import STRATEGIES
from tests.report.samples import record
from tests.workload.sources.idxfiles import write_folder


def told(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert not end.value.code
    return capsys.readouterr().out


def test_every_verb_fits_in_eighty_columns(capsys):
    for words in (["strategies"], ["models"], ["doctor"], ["explain", "-np", "4"]):
        assert max(map(len, told(capsys, *words).splitlines())) <= 80, words


def test_models_as_json_have_the_published_counts(capsys, tmp_path):
    told(capsys, "models", "--json", str(tmp_path / "m.json"))
    rows = {row["name"]: row for row in json.loads((tmp_path / "m.json").read_text())}
    counts = {name: (row["parameters"], row["tensors"]) for name, row in rows.items()}
    assert counts["resnet50"] == (25_557_032, 161)
    assert counts["resnet50(bias=true, classes=10)"] == (23_555_082, 214)
    assert counts["mobilenet_v2(classes=10)"] == (2_236_682, 158)
    assert counts["vgg16"][0] == 138_357_544
    assert counts["bert_base"][0] == 110_106_428
    assert counts["bert_large"][0] == 336_226_108


def test_explain_knows_bytes_without_running(capsys, tmp_path):
    out = told(capsys, "explain", "-np", "4", "--schedule", "wfbp", "--json", str(tmp_path / "e.json"))
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["model_bytes"] == 4 * 25_557_032
    assert len(found["chunks"]) == 161
    # every worker receives 2 (n-1)/n of the gradient, and of the flags behind it
    assert abs(max(found["received"]) - 1.5 * 4 * (25_557_032 + 161)) < 161 * 256
    assert "wfbp" in out


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_explain_knows_every_strategy(strategy, capsys):
    words = ["explain", "-np", "4", "--nodes", "2x2", "--strategy", strategy, "--optimizer", "sgd(lr=0.1)"]
    out = told(capsys, *words)
    assert "bytes per worker and exchange" in out
    assert ("servers" in out) == bool(servers_of(Run(workers=4, strategy=strategy)))


@pytest.mark.parametrize(("schedule", "planned"), [("wfbp", True), ("mgwfbp", False)])
def test_explain_says_whether_chunks_are_those_of_the_run(schedule, planned, capsys, tmp_path):
    out = tmp_path / "e.json"
    told(capsys, "explain", "--model", "mlp", "--schedule", schedule, "--json", str(out))
    assert json.loads(out.read_text())["planned"] is planned


def test_explain_says_when_a_schedule_crosses_the_step(capsys):
    assert "back before the next forward needs it" in told(capsys, "explain", "-np", "2", "--schedule", "priority")
    assert "back before the update" in told(capsys, "explain", "-np", "2", "--schedule", "wfbp")


def test_explain_counts_what_a_server_receives(capsys, tmp_path):
    axes = ["--exchange", "ps(servers=1, colocated=false)", "--schedule", "bsp"]
    told(capsys, "explain", "-np", "4", *axes, "--json", str(tmp_path / "e.json"))
    model = 4 * (25_557_032 + 161)
    assert json.loads((tmp_path / "e.json").read_text())["received"] == [model] * 4 + [4 * model]


def test_explain_takes_what_describes_a_run():
    verbs = typer.main.get_command(app).commands
    flags = {verb: {option.name for option in verbs[verb].params} for verb in ("run", "explain")}
    assert set(Run.model_fields) <= flags["run"] & flags["explain"]


def test_explain_in_place_of_run_tells_the_command(capsys):
    flags = "--steps 3 --warmup 2 --seed 4 --cpus 0.5 --clip-norm 1 --accumulate 2 --use-fp16 --fake-location cpu"
    out = told(capsys, "explain", "dnn=mlp", "bs=8", "nworkers=4", "threshold=0", *flags.split())
    command = next(line for line in out.splitlines() if line.startswith("paceline run"))
    assert command == (
        "paceline run -np 4 --schedule wfbp --cpus 0.5 --model mlp --batch-size 8 --source 'fake(cpu)' "
        "--precision fp16 --accumulate 2 --clip-norm 1 --steps 3 --warmup 2 --seed 4"
    )


@pytest.mark.parametrize(
    ("flags", "inputs", "classes"), [("--image-size 32", 3 * 32**2, 10), ("--source idx({})", 4**2, 3)]
)
def test_explain_knows_the_tensors_that_flags_and_samples_make(flags, inputs, classes, capsys, tmp_path):
    write_folder(tmp_path, size=4, classes=3)
    words = flags.format(tmp_path).split()
    told(capsys, "explain", "--model", "mlp", *words, "--json", str(tmp_path / "e.json"))
    found = json.loads((tmp_path / "e.json").read_text())
    assert found["model_bytes"] == 4 * ((inputs + 1) * 256 + 257 * 256 + 257 * classes)


def test_a_table_is_as_wide_as_it_needs_to_be():
    assert list(table(("a", "b"), [("x", "10"), ("yy", "3")])) == ["a    b", "--  --", "x   10", "yy   3"]


def test_sizes_are_spoken():
    assert [size(n) for n in (12, 1500, 2.5e6, 7e9)] == ["12 B", "1.5 kB", "2.5 MB", "7.0 GB"]


def test_an_interval_that_is_not_known_is_not_shown():
    assert plus_minus(Interval(2.0, 1.5, 2.5), 1) == "2.0 +- 0.5"
    assert plus_minus(Interval(2.0, None, None), 1) == "2.0"


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_flags_of_a_strategy_can_be_pasted_in_place_of_its_name(name, capsys):
    lines = told(capsys, "strategies").splitlines()
    given = shlex.split(lines[lines.index(f"  {name}") + 2])
    values = {flag.removeprefix("--"): text for flag, text in zip(given[::2], given[1::2], strict=True)}
    assert axes_of(Run(workers=4, **values)) == axes_of(Run(workers=4, strategy=name))


def test_the_flags_of_a_strategy_on_several_nodes_are_told_too(capsys):
    lines = told(capsys, "strategies").splitlines()
    exchange = shlex.split(lines[lines.index("  neighbor_allreduce") + 3].partition("--exchange ")[2])[0]
    named = Run(workers=4, nodes="2x2", strategy="neighbor_allreduce")
    assert axes_of(named.with_(strategy=None, rule="awc", exchange=exchange)) == axes_of(named)


def test_only_what_bounds_memory_is_called_a_bound():
    kept = record(resources={"pss_peak": [480e6, 481e6], "rss_peak": [570e6, 569e6]})
    assert memory(kept) == "481.0 MB seen (PSS), at most 570.0 MB (RSS) per worker"
    alone = {"pss_peak": [240e6, 241e6], "rss_peak": [300e6, 299e6]}
    weighed = record(resources={**kept.resources, "alone": alone})
    assert memory(weighed) == "241.0 MB seen (PSS), at most 300.0 MB (RSS) per worker, in a start of its own"
    kept = record(resources={"pss_peak": [480e6]})
    assert "at most" not in memory(kept)

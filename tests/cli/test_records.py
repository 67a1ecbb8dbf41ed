"""list, show, compare, report and reproduce on records that were made up."""

import json

import pytest

from paceline.cli import main
from tests.report.samples import race, record


def told(capsys, *words, code=0):
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    out = capsys.readouterr()
    assert (end.value.code or 0) == code, out.err
    return out.out if code == 0 else out.err


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs" / "20261115-230042"
    folder.mkdir(parents=True)
    for kept in race(worlds=(2,), strategies=("ddp", "allreduce"), starts=2):
        (folder / f"{kept.id}.json").write_text(kept.to_json())
    return tmp_path / "runs"


def test_list_shows_the_newest_first(runs, capsys, tmp_path):
    [folder] = runs.iterdir()
    out = told(capsys, "list", "--runs", folder, "--json", tmp_path / "l.json")
    assert "allreduce, mobilenet_v2" in out
    ids = [line.split()[0] for line in out.splitlines()[2:]]
    assert ids == sorted(ids, reverse=True)
    assert [entry["id"] for entry in json.loads((tmp_path / "l.json").read_text())] == ids
    assert max(map(len, out.splitlines())) <= 80


def test_list_names_what_it_leaves_out(runs, capsys):
    (runs / "cut.json").write_text('{"schema": 1, "run"')
    with pytest.raises(SystemExit) as end:
        main(["list", "--runs", str(runs)])
    out = capsys.readouterr()
    assert end.value.code in (0, None)
    assert "cut.json: it is no JSON" in out.err
    assert len(out.out.splitlines()) == 2 + 1, "head and the race"


def test_list_shows_a_race_as_one_line(runs, capsys):
    alone = record(start=9)
    (runs / "alone.json").write_text(alone.model_copy(update={"race": {}, "id": "99999999-alone"}).to_json())
    *_, first, second = told(capsys, "list", "--runs", runs).splitlines()
    raced = first if "race:" in first else second
    assert raced.split()[0] == "20261115-230042"
    assert "race: allreduce, ddp" in raced
    assert raced.split()[-3:] == ["4", "starts", "done"]
    assert len(told(capsys, "list", "--runs", runs, "--last", "1").splitlines()) == 2 + 1


def test_list_takes_only_what_failed_or_is_of_a_model(runs, capsys):
    broken = record(start=9).model_copy(update={"race": {}, "id": "99999999-broken", "verdict": "failed", "rate": {}})
    (runs / "broken.json").write_text(broken.to_json())
    assert "99999999-broken" in told(capsys, "list", "--runs", runs, "--failed")
    assert len(told(capsys, "list", "--runs", runs, "--failed").splitlines()) == 2 + 1
    assert len(told(capsys, "list", "--runs", runs, "--model", "mobilenet").splitlines()) == 2 + 2
    assert "no such record" in told(capsys, "list", "--runs", runs, "--model", "vgg")


def test_list_fits_in_eighty_columns_whatever_the_names(runs, capsys):
    long = record(start=9).model_copy(update={"race": {}, "id": "20261115-230142-abcdefgh"})
    run = long.run.with_(
        strategy=None, rule="atc(every=8)", exchange="neighbor(one_peer(exp2))", compressor="cast(bf16)"
    )
    (runs / "long.json").write_text(long.model_copy(update={"run": run}).to_json())
    out = told(capsys, "list", "--runs", runs)
    assert max(map(len, out.splitlines())) <= 80
    assert "20261115-230142-abcdefgh" in out


@pytest.mark.parametrize(
    "change",
    [
        {"rate": {"total": "x"}},
        {"rate": {"total": {"mean": "abc"}}},
        {"rate": {"total": {"mean": float("nan")}}},
        {"environment": {"cores": "many"}},
        {"step": {}},
        {"series": {"dropped_blocks": "2"}},
    ],
    ids=lambda change: json.dumps(change),
)
def test_one_damaged_record_stops_no_verb(change, runs, capsys, tmp_path):
    path = runs / "damaged.json"
    path.write_text(json.dumps({**json.loads(record(start=9).to_json()), **change}))
    for words in (["list", "--runs", runs], ["report", runs, "--out", tmp_path / "r.html"]):
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        assert not end.value.code
        out = capsys.readouterr()
        assert f"left out: {path}: " in out.err
        assert "nan" not in out.out
    assert "is not a record" in " ".join(told(capsys, "show", path, code=2).split())


def test_show_takes_a_part_of_the_id_or_a_file(runs, capsys):
    by_id = told(capsys, "show", "230101-allr2", "--runs", runs)
    [path] = runs.rglob("*230101-allr2.json")
    assert told(capsys, "show", path) == by_id
    assert "Total img/sec on 2 CPU(s):" in by_id
    assert "paceline run -np 2 --strategy allreduce" in by_id
    assert max(len(line) for line in by_id.splitlines() if not line.startswith("file")) <= 80


def test_show_of_a_failed_run_is_no_crash(tmp_path, capsys):
    path = tmp_path / "f.json"
    path.write_text(record(verdict="failed", rate={}, step={}, breakdown={}).to_json())
    assert "failed" in told(capsys, "show", path)


def test_compare_gives_the_ratio_and_what_differs(runs, capsys, tmp_path):
    out = told(capsys, "compare", "230101-allr2", "230101-ddp2", "--runs", runs, "--json", tmp_path / "c.json")
    found = json.loads((tmp_path / "c.json").read_text())
    assert found["ratio"]["centre"] > 1
    assert {entry["what"] for entry in found["differences"]} == {"run strategy", "comm"}
    assert "A / B" in out
    assert max(map(len, out.splitlines())) <= 80


def test_compare_decides_nothing_from_one_start_of_each_whatever_is_inside(tmp_path, capsys):
    for name, strategy, rate in (("a", "allreduce", 200.0), ("b", "ddp", 100.0)):
        kept = record(strategy)
        repeats = [rate + k for k in range(20)]
        kept.rate["total"] |= {"repeats": repeats, "mean": repeats[0]}
        (tmp_path / f"{name}.json").write_text(kept.to_json())
    out = told(capsys, "compare", tmp_path / "a.json", tmp_path / "b.json", "--json", tmp_path / "ab.json")
    assert "2.000   one start of each gives no verdict" in out
    assert "paceline race" in out
    found = json.loads((tmp_path / "ab.json").read_text())
    assert (found["differs"], found["ratio"]["low"]) == (None, None)


def test_compare_takes_several_starts_of_each_side(tmp_path, capsys):
    folders = {strategy: tmp_path / strategy for strategy in ("allreduce", "ddp")}
    for strategy, folder in folders.items():
        folder.mkdir()
        for start in range(1, 6):
            (folder / f"{start}.json").write_text(record(strategy, start=start).to_json())
    out = told(capsys, "compare", *folders.values(), "--json", tmp_path / "c.json")
    assert "a difference" in out
    assert "95 % interval over 5 and 5 starts" in out
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["differs"], len(found["first"])) == (True, 5)
    few = [",".join(f"23010{start}-{name}2" for start in (1, 2)) for name in ("allr", "ddp")]
    assert "too few starts to tell: 5 of each are needed" in told(capsys, "compare", *few, "--runs", tmp_path)
    assert "are on one side" in told(capsys, "compare", tmp_path, folders["ddp"], code=2)
    (tmp_path / "empty").mkdir()
    assert "there is no record in" in told(capsys, "compare", tmp_path / "empty", folders["ddp"], code=2)


def test_compare_sees_versions_and_machines(tmp_path, capsys):
    old = record()
    stack = {**old.environment, "packages": {**old.environment["packages"], "torch": "2.6.0"}, "cores": 64}
    for name, kept in (("a", old), ("b", old.model_copy(update={"environment": stack}))):
        (tmp_path / f"{name}.json").write_text(kept.to_json())
    out = told(capsys, "compare", tmp_path / "a.json", tmp_path / "b.json")
    assert "packages torch" in out
    assert "2.6.0" in out
    assert "cores" in out


def test_compare_refuses_what_has_no_ratio(tmp_path, capsys):
    (tmp_path / "a.json").write_text(record().to_json())
    (tmp_path / "b.json").write_text(record(unit="sequence").to_json())
    (tmp_path / "c.json").write_text(record(verdict="failed", rate={}).to_json())
    assert "no ratio" in told(capsys, "compare", tmp_path / "a.json", tmp_path / "b.json", code=2)
    assert "has no rate" in told(capsys, "compare", tmp_path / "a.json", tmp_path / "c.json", code=2)


def test_report_writes_one_page(runs, capsys, tmp_path):
    out = told(capsys, "report", runs, "--out", tmp_path / "r.html", "--title", "two ways")
    assert out.startswith("4 record(s): ")
    assert "two ways" in (tmp_path / "r.html").read_text()
    told(capsys, "report", "230101-allr2", "--runs", runs, "--out", tmp_path / "one.html")
    assert "ddp2" not in (tmp_path / "one.html").read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["list", "--runs", "nowhere"], "there is no such folder"),
        (["show", "nope"], "there is no record 'nope'"),
        (["compare", "a", "b"], "there is no record 'a'"),
        (["rerun", "nope"], "there is no record 'nope'"),
        (["report", "--out", "nowhere/r.html"], "there is no folder nowhere"),
        (["report", "--runs", "nowhere"], "there is no record in nowhere"),
        (["reproduce", "elastikdl"], "did you mean elasticdl?"),
        (["run", "--trace", "/nowhere/t.json"], "--trace /nowhere/t.json: there is no folder"),
        (["run", "--trace", "t.json", "--", "python", "x.py"], "--trace with a script"),
        (["report", "--charts", "file"], "--charts file: file is not a folder try: --charts FOLDER"),
        (["report", "--charts", "file/deep"], "--charts file/deep: file is not a folder"),
        (["list", "--runs", "file"], "--runs file: file is not a folder"),
        (["list", "nope"], "paceline list ... nope: that is a word too many try: paceline list --help"),
        (["show", "file"], "file is not a record: it is no JSON"),
        (["show", "bad.json"], "bad.json is not a record: id: it is missing try: paceline list names the records"),
        (["race", "--contender", "allreduce,steps=3"], "it belongs to the race as a whole try: --steps 3 beside"),
    ],
)
def test_what_is_not_there_is_a_wrong_command(words, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "bad.json").write_text('{"schema": 1}')
    assert why in " ".join(told(capsys, *words, code=2).split())


def test_a_record_of_another_schema_is_named(tmp_path, capsys):
    (tmp_path / "old.json").write_text(record().to_json().replace('"schema": 1', '"schema": 0'))
    assert "has schema 0: this paceline reads schema 1" in told(capsys, "show", tmp_path / "old.json", code=2)


def test_tensorboard_that_is_missing_is_told_before_anything_runs(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    err = told(capsys, "run", "--model", "mlp", "--tensorboard", tmp_path, code=2)
    assert "--tensorboard needs tensorboard" in err
    assert "pip install 'paceline[tensorboard]'" in err

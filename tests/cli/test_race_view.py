import io
import json
import re
import shlex

from rich.console import Console

from paceline.cli.race import _greet, _report
from paceline.cli.race_view import RaceView, as_json, closing, picture, short, spoken_time
from paceline.errors import WorkerFailed
from paceline.race.cells import Start
from paceline.race.folder import open_folder
from paceline.race.plan import plan
from paceline.race.race import race
from tests.race.fake_race import Isolated, Turns, drawn, raced, small, sure

LONG = "rule=gradient_tracking,exchange=neighbor(one_peer(exp2)),schedule=wfbp"


def watched(tmp_path, **console):
    shown = io.StringIO()
    with RaceView(Console(file=shown, width=80, **console)) as view:
        race = raced(tmp_path, watcher=view)
    return race, shown.getvalue()


def test_without_a_terminal_every_cell_is_one_plain_line_with_the_time_left(tmp_path):
    _, shown = watched(tmp_path)
    lines = shown.splitlines()
    assert len(lines) == 20
    assert re.fullmatch(r"round 1/5 +[\d.]+ img/sec  [\w ]+", lines[0].split(",")[0])
    assert lines[-1].startswith("round 5/5")
    assert "\x1b" not in shown


def test_on_a_terminal_the_table_is_live(tmp_path):
    _, shown = watched(tmp_path, force_terminal=True)
    assert "\x1b" in shown


def test_the_live_table_marks_what_runs_and_counts_rounds(tmp_path):
    race = raced(tmp_path, sure(), Turns())
    start = Start(tuple(cell for cell in race.plan.cells_in(1) if not cell.alone), shared=True)
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(picture(race, start, "turn 3/8"))
    text = console.export_text()
    assert re.match(r"\d+ records.*; round 1, turn 3/8", text)
    assert re.search(r"^> allreduce .* \d+ *$", text, re.M)
    assert not re.search(r"^> one worker", text, re.M)
    assert "now: allreduce wins on 2 workers" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_the_closing_fits_in_eighty_columns_and_ends_with_the_verdict(tmp_path):
    suite = small(contenders=["allreduce", "local_sgd", LONG], workers=[4])
    speed = {"local_sgd": 95.0, LONG: 80.0}
    lines = list(closing(raced(tmp_path, suite, drawn(speed))))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "mlp, 4 workers, batch 32" in text
    assert "allreduce wins" in text
    assert "* changes convergence" in text
    assert f"{short(LONG)} is {LONG}" in " ".join(text.split())


def test_failures_are_told_at_the_end(tmp_path):
    def measured(cell):
        if cell.label == "ddp":
            raise WorkerFailed("rank 1 (pid 7) was killed by SIGKILL")
        return drawn()(cell)

    race = raced(tmp_path, small(rounds=1), measured)
    text = " ".join("\n".join(closing(race)).split())
    assert "failed: ddp, mlp, 2 workers, batch 32, round 1: rank 1 (pid 7) was killed by SIGKILL" in text
    assert as_json(race)["failed"][0]["why"] == "rank 1 (pid 7) was killed by SIGKILL"


def test_a_race_as_json_has_rates_verdicts_and_records(tmp_path):
    told = as_json(raced(tmp_path))
    [heat] = told["heats"]
    assert (heat["verdict"]["winner"], heat["verdict"]["rival"]) == ("allreduce", "ddp")
    assert heat["verdict"]["text"].startswith("allreduce wins")
    assert [row["name"] for row in heat["contenders"]] == ["one worker", "limit", "ddp", "allreduce"]
    assert all(len(row["rates"]) == len(row["records"]) == 5 for row in heat["contenders"])


def test_times_are_spoken():
    assert [spoken_time(n) for n in (5, 65, 3661)] == ["0:05", "1:05", "1:01:01"]


def test_a_label_that_looks_like_markup_is_shown_as_it_is(tmp_path):
    suite = small(contenders=["a[/x]:smile:: allreduce"], rounds=1)
    measured = drawn({"a[/x]:smile:": 100.0})
    for name, settings in (("plain", {}), ("live", {"force_terminal": True})):
        shown = io.StringIO()
        with RaceView(Console(file=shown, width=80, **settings)) as view:
            race = raced(tmp_path / name, suite, measured, watcher=view)
        assert name == "live" or "a[/x]:smile:" in shown.getvalue()
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(picture(race, None))
    assert "a[/x]:smile:" in console.export_text()


SCRIPT = ["python", "t.py", "--token=t0ps3cret", "--password", "t0ps3cret", "--db-url", "s3://me:t0ps/3cret@bucket"]


def raced_script(tmp_path, watcher=None):
    """A race of a script that is given secrets; its ddp fails and says them."""
    words, draw = shlex.join(SCRIPT), drawn()

    def measured(cell):
        if cell.label == "ddp":
            raise WorkerFailed(f"rank 1 of {words} exited with 1")
        found, events = draw(cell)
        return found.model_copy(update={"run": cell.run.with_(model=words), "text": f"paceline run -- {words}"}), events

    planned = plan(small(rounds=2), script=SCRIPT)
    folder, known = open_folder(planned, tmp_path)
    _greet(planned, folder, known)
    return race(planned, folder, measured=Isolated(measured), watcher=watcher)


def test_no_secret_of_a_script_is_printed_or_written(tmp_path, capsys):
    shown = io.StringIO()
    with RaceView(Console(file=shown, width=200, force_terminal=True)) as view:
        result = raced_script(tmp_path, view)
    _report(result)
    printed = capsys.readouterr().out + shown.getvalue() + "\n".join(closing(result)) + json.dumps(as_json(result))
    files = [path.read_text() for path in result.folder.path.iterdir()]
    for text in (printed, *files, str(result.records)):
        assert "t0ps" not in text
        assert "3cret" not in text
    assert "python t.py --token=*** --password *** --db-url s3://***@bucket, 2 workers" in printed
    assert "report.html" in {path.name for path in result.folder.path.iterdir()}


def test_cells_of_a_script_that_is_given_secrets_are_of_one_model(tmp_path):
    records = raced_script(tmp_path).records.values()
    assert len({record.run.model for record in records if record.verdict != "failed"}) == 1
    assert all(record.efficiency for record in records if record.verdict != "failed" and record.workers > 1)


def test_going_on_says_which_records_are_damaged(tmp_path, capsys):
    first = raced(tmp_path)
    (first.folder.path / "race.done").unlink()
    path = first.folder.record_path(first.plan.cells[0])
    path.write_text("[]")
    _greet(first.plan, first.folder, True)
    assert f"{path.name} is damaged (it is no JSON object): its cell runs again" in capsys.readouterr().out


def test_a_race_begins_with_its_title_and_notes(tmp_path, capsys):
    suite = small(title="Two ways", notes=["no gain is expected"], contenders=["local_sgd"], run={"steps": 5})
    planned = plan(suite)
    _greet(planned, *open_folder(planned, tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Two ways"
    assert "note: no gain is expected" in lines
    assert any(line.startswith("note: local_sgd repeats itself every 8 steps") for line in lines)


def test_the_speed_up_stands_below_the_table_with_what_was_published(tmp_path):
    suite = small(workers=[1, 2], published=[{"text": "speed-up 1.82 there", "workers": 2}])
    result = raced(tmp_path, suite)
    text = "\n".join(closing(result))
    alone, two = text.split("mlp, 2 workers, batch 32")
    assert re.search(
        r"^speed-up over one worker: limit [12]\.\d+ \+- 0.0\d, ddp 1.6\d .* allreduce 1.8", two, re.M | re.S
    )
    assert two.count("published: speed-up 1.82 there") == 1
    assert "speed-up" not in alone
    assert [heat["published"] for heat in as_json(result)["heats"]] == [[], ["speed-up 1.82 there"]]

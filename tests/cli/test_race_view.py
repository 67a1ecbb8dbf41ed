import html
import io
import json
import re
import shlex

import pytest
from rich.console import Console

from paceline.cli.race import _greet, _report
from paceline.cli.race_view import RaceView, as_json, closing, picture, short, spoken_time
from paceline.errors import WorkerFailed
from paceline.race.cells import Start
from paceline.race.folder import open_folder
from paceline.race.notebook import RaceResult
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


def test_the_live_view_and_the_lines_fit_into_80_columns_with_every_interval(tmp_path):
    long = "a long label of a contender that goes on"
    fast = {"one worker": 55_000.0, "limit": 110_000.0, "ddp": 90_000.0}
    suite = sure(models=["mobilenet_v2", "resnet50"], contenders=["allreduce", f"{long}: wfbp"], minutes=0.02)
    shown = io.StringIO()
    with RaceView(Console(file=shown, width=80)) as view:
        race = raced(tmp_path, suite, Turns({**fast, long: 1e5, "allreduce": 99_000.0}, noise=0.05), watcher=view)
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any(re.search(r"mobilenet_v2, .*\.\.\.", line) for line in lines), lines
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(picture(race, None))
    text = console.export_text()
    assert "\u2026" not in text  # the ellipsis of a cell that is cut
    [row, *_] = [line for line in text.splitlines() if line.startswith("  allreduce ")]
    assert len(row.split("+-")) == 3, row  # the ratios to ddp and to limit, each with its interval
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("speed", [70.0, 104.0], ids=["ddp is the rival", "allreduce is the rival"])
def test_terminal_page_json_and_notebook_have_one_ratio_to_ddp(speed, tmp_path):
    """Whoever the rival is, the ratio of the best contender to ddp is there, and it is the same number."""
    race = raced(tmp_path, sure(contenders=["allreduce", "wfbp"]), Turns({"wfbp": speed}, noise=0.02))
    values = as_json(race)
    [heat] = values["heats"]
    best, ratio = heat["verdict"]["best"], heat["verdict"]["of_ddp"]
    [row] = [one for one in heat["contenders"] if one["name"] == best]
    assert row["of_ddp"] == ratio
    words = f"{ratio['centre']:.2f}x ddp (95 % interval {ratio['low']:.2f} to {ratio['high']:.2f})"
    terminal = " ".join("\n".join(closing(race)).split())
    assert terminal.count(words) == 1
    assert f" {ratio['centre']:.2f} +- " in next(line for line in closing(race) if line.startswith(f"{best} "))
    _report(race)
    page = html.unescape((race.folder.path / "report.html").read_text()).replace("\u00a0", " ")
    assert words in page
    assert f"<b>{100 * ratio['centre']:.0f} %</b>" in page
    notebook = RaceResult(race)
    assert words in repr(notebook)
    assert words in html.unescape(notebook._repr_html_())
    short_form = f"{ratio['centre']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"
    assert short_form in repr(notebook)
    assert heat["verdict"]["rival"] == ("ddp" if speed < 90 else "allreduce")


def test_a_page_of_a_busy_machine_says_so_beside_its_verdict(tmp_path):
    class Busy(Turns):
        def together(self, start, seconds, on_line):
            busy = {"other_cores": 1.5, "cores": 2} if start.round < 3 else {}
            return [(r.model_copy(update={"busy": busy}), e) for r, e in super().together(start, seconds, on_line)]

    for measured, disturbed in ((Busy(), True), (Turns(), False)):
        race = raced(tmp_path / str(disturbed), sure(rounds=5), measured)
        _report(race)
        header = (race.folder.path / "report.html").read_text().partition("</header>")[0]
        assert ("The machine was busy" in header) is disturbed
        judged = as_json(race)["heats"][0]["verdict"]["busy"]
        assert ("the machine was busy" in judged) is disturbed
        if disturbed:
            assert re.search(r"machine was busy in 2 of \d+ starts: other processes used 1.5 of 2 cores", header)


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

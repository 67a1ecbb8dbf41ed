import io
import re

from rich.console import Console

from paceline.cli.race_view import View, as_json, closing, picture, short, spoken_time
from paceline.errors import WorkerFailed
from tests.jobs.fake_race import drawn, raced, small

LONG = "rule=gradient_tracking,exchange=neighbor(one_peer(exp2)),schedule=wfbp"


def watched(tmp_path, **console):
    shown = io.StringIO()
    with View(Console(file=shown, width=80, **console)) as view:
        race = raced(tmp_path, watcher=view)
    return race, shown.getvalue()


def test_without_a_terminal_every_cell_is_one_plain_line_with_the_time_left(tmp_path):
    _, shown = watched(tmp_path)
    lines = shown.splitlines()
    assert len(lines) == 20
    assert re.fullmatch(r" 1/20  round 1 +[\d.]+ img/sec  [\w ]+", lines[0].split(",")[0])
    assert lines[-1].startswith("20/20  round 5")
    assert "\x1b" not in shown


def test_on_a_terminal_the_table_is_live(tmp_path):
    _, shown = watched(tmp_path, force_terminal=True)
    assert "\x1b" in shown


def test_the_live_table_marks_what_runs_and_counts_rounds(tmp_path):
    race = raced(tmp_path)
    del race.records[race.plan.cells[-1].name]
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(picture(race, race.plan.cells[-1]))
    text = console.export_text()
    assert text.startswith("19 of 20 cells, about 0:0")
    assert re.search(rf"^> {race.plan.cells[-1].label} .* 4/5 *$", text, re.M)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_the_closing_fits_in_eighty_columns_and_ends_with_the_verdict(tmp_path):
    suite = small(contenders=["allreduce", "local_sgd", LONG], workers=[4])
    speed = {"local_sgd": 95.0, LONG: 80.0}
    lines = list(closing(raced(tmp_path, suite, drawn(speed))))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "mlp, 4 workers, batch 32" in text
    assert "winner: allreduce" in text
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
    assert heat["verdict"][0].startswith("winner: allreduce")
    assert [row["name"] for row in heat["contenders"]] == ["one worker", "limit", "ddp", "allreduce"]
    assert all(len(row["rates"]) == len(row["records"]) == 5 for row in heat["contenders"])


def test_times_are_spoken():
    assert [spoken_time(n) for n in (5, 65, 3661)] == ["0:05", "1:05", "1:01:01"]
